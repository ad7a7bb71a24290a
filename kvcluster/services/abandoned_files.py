"""Files of owners that no longer run, in the run folder: told to a person, and removed by the next owner's start.

An owner holds the lock of its file (`services.session_file`) for as long as it lives. A file that nobody holds is
what a killed owner left: it is kept while a client that stands in it lives, because the next incarnation must know of
that one's memory; then it is of no use to anybody. It never blocks a start.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from kvcluster.services.session_file import clients_in

PATTERN = "*.sessions"


@dataclass(frozen=True, slots=True)
class AbandonedFile:
    """`clients` are the processes that may still have memory of its owner mapped."""

    path: Path
    clients: tuple[int, ...]


def abandoned_files(folder: Path) -> Iterator[AbandonedFile]:
    """Those that nobody holds; changes nothing."""
    for path in sorted(folder.glob(PATTERN)):
        with _held_by_nobody(path) as is_abandoned:
            if is_abandoned:
                yield AbandonedFile(path, clients_in(path))


def sweep(folder: Path, *, but: Path) -> None:
    """Remove those that nobody holds and no living process stands in, except for one. What cannot be removed stays."""
    for path in folder.glob(PATTERN):
        with _held_by_nobody(path) as is_abandoned:
            if is_abandoned and path != but and not clients_in(path):
                with suppress(OSError):
                    path.unlink()


@contextmanager
def _held_by_nobody(path: Path) -> Iterator[bool]:
    """Whether nobody holds the file's lock; if so we do, for the length of the block, so that nobody takes it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)  # of a FIFO too
    except OSError:  # it has gone, or is none of ours
        yield False
        return
    try:
        yield stat.S_ISREG(os.fstat(descriptor).st_mode) and _lock(descriptor)
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
