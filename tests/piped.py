"""A process that is asked one thing at a time, as lines of JSON; the frames that it has for a device are answered."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

ROOT = Path(__file__).parents[1]
TIMEOUT_S = 30.0


class Process(Protocol):
    """What of `subprocess.Popen` is used here."""

    @property
    def stdin(self) -> IO[str] | None: ...
    @property
    def stdout(self) -> IO[str] | None: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def kill(self) -> None: ...


def started(command: Sequence[str], more: Mapping[str, str] | None = None) -> Process:
    """A new process with `more` in its environment."""
    pipe = subprocess.PIPE
    environment = {**os.environ, **(more or {})}
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=ROOT, env=environment, text=True)


class Piped:
    """`answered` is what a frame of the process is answered with, where it has a device."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.answered: Callable[[bytes], bytes] | None = None

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def ask(self, verb: str, *arguments: Any) -> Any:
        """What it answers; None where it ended meanwhile (see `died_of`)."""
        self._say(json.dumps([verb, *arguments]))
        return self.answer()

    def answer(self) -> Any:
        """What it says next; None where it ended."""
        line = self.heard()
        return json.loads(line) if line else None

    def heard(self) -> str:
        """Its next line that is no frame; empty where it ended."""
        assert self._process.stdout is not None
        while (line := self._process.stdout.readline()).startswith("frame "):
            assert self.answered is not None
            self._say(self.answered(bytes.fromhex(line.removeprefix("frame "))).hex())
        return line

    def died_of(self) -> int:
        """The signal that ended it."""
        return -self._process.wait(TIMEOUT_S)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(TIMEOUT_S)

    def end(self) -> None:
        """Kill it, and close its pipes."""
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
