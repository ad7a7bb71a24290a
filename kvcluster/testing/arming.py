"""What an armed failpoint does: raise, delay, hang, or end the process, at its n-th passage.

    KVCLUSTER_FAILPOINTS="client.commit.mapped=kill@2;device.commit.taken=hang:/tmp/here"

    raise           a DriverError. For points inside a transaction, which then is undone; elsewhere it is our bug
    delay:SECONDS   sleep
    hang:FILE       create FILE, so that a test knows that the point was reached, and wait until it is gone again
    kill            SIGKILL this process
    exit            leave at once, without a clean-up

`@n` picks the passage, counted from 1 (the first, where nothing is said); `@*` means each. Text that is none of this
is refused when it is read, not when the point is passed. In one process: `with armed("device.commit.taken=raise"):`.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvcluster.errors import DriverError
from kvcluster.failpoints import ENVIRONMENT, Failpoint, arm

EXIT_STATUS = 70
_POLL_S = 0.002
_ACTIONS = {"raise": False, "delay": True, "hang": True, "kill": False, "exit": False}  # with an argument?


@dataclass(frozen=True, slots=True)
class Fault:
    """`passage` is None for each."""

    point: Failpoint
    action: str
    argument: str
    passage: int | None


def parse_faults(text: str) -> tuple[Fault, ...]:
    """The faults that `text` names, in its order.

    Raises:
        ValueError: it names something that there is not; the sentence says what.
    """
    return tuple(_parse(part.strip()) for part in text.split(";") if part.strip())


class Arms:
    """Does what its faults say; `passed` counts every point. Safe to call from several threads."""

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        self._faults = faults
        self._lock = threading.Lock()
        self.passed: Counter[Failpoint] = Counter()

    def __call__(self, point: Failpoint) -> None:
        with self._lock:
            self.passed[point] += 1
            passage = self.passed[point]
        for fault in self._faults:
            if fault.point is point and fault.passage in (None, passage):
                _do(fault)


@contextmanager
def armed(text: str) -> Iterator[Arms]:
    """Arm this process for the length of a block."""
    arms = Arms(parse_faults(text))
    arm(arms)
    try:
        yield arms
    finally:
        arm(None)


def arm_from_environment() -> None:
    """Arm this process as its environment says, for as long as it lives."""
    arm(Arms(parse_faults(os.environ.get(ENVIRONMENT, ""))))


def _parse(part: str) -> Fault:
    name, equals, what = part.partition("=")
    if not equals or name not in list(Failpoint):
        raise ValueError(f"{part!r} names no failpoint: write {next(iter(Failpoint))}=ACTION")
    what, _, passage = what.partition("@")
    action, _, argument = what.partition(":")
    if action not in _ACTIONS or bool(argument) != _ACTIONS[action]:
        raise ValueError(f"{what!r} is no action: write raise, delay:SECONDS, hang:FILE, kill or exit")
    if action == "delay":
        float(argument)
    return Fault(Failpoint(name), action, argument, _passage(passage))


def _passage(text: str) -> int | None:
    if text == "*":
        return None
    if text and not (text.isdecimal() and int(text)):
        raise ValueError(f"{text!r} is no passage: they are counted from 1, and * is each")
    return int(text or 1)


def _do(fault: Fault) -> None:
    match fault.action:
        case "raise":
            raise DriverError(call=fault.point, code=errno.EIO, name="EIO")
        case "delay":
            time.sleep(float(fault.argument))
        case "hang":
            _hang(Path(fault.argument))
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case _:
            os._exit(EXIT_STATUS)


def _hang(file: Path) -> None:
    file.touch()
    while file.exists():
        time.sleep(_POLL_S)
