"""Whoever reads our output may leave (`| head -1`, a closed terminal): neither the job nor its exit code changes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


@contextmanager
def reader_may_leave(stream: TextIO) -> Iterator[None]:
    """What the block writes to `stream` after its reader has left goes nowhere, and so does all that follows."""
    try:
        yield
        stream.flush()
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
