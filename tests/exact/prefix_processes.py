"""Processes that compute, asked one thing at a time, and the device that they attach to: no Ray."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.exact.prefix_site import Known, Setting
from tests.piped import Piped, started
from tests.services.processes import GRANULE, Host


class Ended(AssertionError):
    """The process died while it was asked something: -11 were a write into what is mapped for reading."""


class Computer(Piped):
    """A process of `prefix_child`."""

    def __init__(self) -> None:
        super().__init__(started([sys.executable, "-m", "tests.exact.prefix_child"]))

    def answer(self) -> Any:
        line = self.heard()
        if not line:
            raise Ended(f"the process ended by signal {self.died_of()}")
        return json.loads(line)


class Far:
    """A site in another process; the verbs of `Site`."""

    def __init__(self, computer: Computer, host: Host, folder: Path, setting: Setting) -> None:
        self._computer = computer
        computer.answered = host.frame
        capacity_bytes = host.service.audit().capacity_bytes
        assert setting.granule_bytes == GRANULE
        computer.ask("attach", host.server.address.replace("\0", "@"), capacity_bytes, str(folder), asdict(setting))

    def open(self, prompt: Sequence[int]) -> int:
        return int(self._computer.ask("open", prompt))

    def join(self, number: int, known: Known, match: int) -> int | str:
        joined: int | str = self._computer.ask("join", number, known, match)
        return joined

    def say(self, numbers: Sequence[int], count: int) -> list[list[int]]:
        said: list[list[int]] = self._computer.ask("say", numbers, count)
        return said

    def publish(self, numbers: Sequence[int]) -> list[Known | str]:
        published: list[Known | str] = self._computer.ask("publish", numbers)
        return published

    def release(self, number: int) -> None:
        self._computer.ask("release", number)

    def close(self, numbers: Sequence[int]) -> None:
        self._computer.ask("close", numbers)

    def far(self, number: int, other: int) -> float:
        return float(self._computer.ask("far", number, other))

    def detach(self) -> None:
        self._computer.ask("detach")
        self._computer.answered = None
