"""Another process that does one act of `child.py`, from the side of whoever starts it.

It says lines of JSON, is given descriptors by inheritance, and ends when its standard input does, unless it is killed
before. What became of it is told by `ended`.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks.gpu_check.setting import Broken, Skipped


class Child:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def says(self) -> Any:
        """Its next line.

        Raises:
            Skipped: it said that it cannot.
            Broken: it ended instead.
        """
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise Broken(f"a child ended ({self.ended()}) before it said anything")
        said = json.loads(line)
        if isinstance(said, dict) and "skipped" in said:
            raise Skipped(said["skipped"])
        return said

    def ended(self) -> str:
        """Waits for its end: "SIGSEGV", or "status 0"."""
        status = self.process.wait()
        return signal.Signals(-status).name if status < 0 else f"status {status}"


@contextmanager
def started(act: str, *arguments: object, descriptors: Sequence[int] = ()) -> Iterator[Child]:
    """A child that does `act`; at the block's end it is told to end, and is waited for."""
    command = [sys.executable, "-m", "benchmarks.gpu_check.child", act, *map(str, arguments), *map(str, descriptors)]
    with subprocess.Popen(
        command, pass_fds=descriptors, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Child(process)
        except BaseException:
            process.kill()
            raise
