"""What an armed failpoint does: raise, delay, hang, lose a reply, or end the process, at its n-th passage.

    KVCLUSTER_FAILPOINTS="client.commit.mapped=kill@2; pages:device.frame.stored=hang:/tmp/here; marks=/tmp/marks"

    raise           a DriverError. For points inside a transaction, which then is undone; elsewhere it is our bug
    delay:SECONDS   sleep
    hang:FILE       create FILE, so that a test knows that the point was reached, and wait until it is gone again
    lose            the reply that arrived here is dropped: for `client.reply.arrived` alone
    kill            SIGKILL this process
    exit            leave at once, without a clean-up

`@n` picks the passage of a process, counted from 1 (the first, where nothing is said); `@*` means each, and `@k%` so
many of each hundred, evenly, from the first on. `KIND:` before a point means processes of that kind alone.

`marks=FOLDER`, an existing folder, makes what names one passage happen once, whoever passes it first: an actor that is
started again is armed again, and must not die again. Whoever acts leaves a line with its process id in a file of the
fault's name there, before it acts. Text that is none of this is refused when it is read, not when the point is passed.
In one process: `with armed("device.commit.taken=raise"):`.
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
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from kvcluster.errors import DriverError
from kvcluster.failpoints import Failpoint, Passer, ReplyLost, arm, passer

EXIT_STATUS = 70
MARKS = "marks"
MOST_DELAY_S = 3600.0
_POLL_S = 0.002
_POINTS = {str(point): point for point in Failpoint}
_ACTIONS = {  # with an argument?
    "raise": False,
    "delay": True,
    "hang": True,
    "lose": False,
    "kill": False,
    "exit": False,
}


@dataclass(frozen=True, slots=True)
class Fault:
    """`passage` is None for each, or for `percent` of each hundred. `marks` is a folder, or nothing."""

    point: Failpoint
    action: str
    argument: str
    passage: int | None
    percent: int = 0
    kind: Passer | None = None
    marks: str = ""

    @property
    def name(self) -> str:
        """As it was written, without its argument: that of its mark."""
        which = f"@{self.percent}%" if self.percent else f"@{self.passage or '*'}"
        return f"{self.kind}:{self.point}={self.action}{which}" if self.kind else f"{self.point}={self.action}{which}"

    def is_due(self, passage: int) -> bool:
        """Whether it happens at this passage of its point, in this process."""
        if self.kind is not None and self.kind is not passer():
            return False
        if self.percent:
            return (passage - 1) * self.percent % 100 < self.percent
        return self.passage in (None, passage)


def parse_faults(text: str) -> tuple[Fault, ...]:
    """The faults that `text` names, in its order.

    Raises:
        ValueError: it names something that there is not; the sentence says what.
    """
    parts = [part.strip() for part in text.split(";") if part.strip()]
    faults = [_parse(part) for part in parts if not part.startswith(f"{MARKS}=")]
    folders = [part.partition("=")[2] for part in parts if part.startswith(f"{MARKS}=")]
    if not folders:
        return tuple(faults)
    if len(folders) > 1 or not Path(folders[0]).is_dir():
        raise ValueError(f"{MARKS}={folders[-1]} is no folder that is there, or not the only one")
    return tuple(replace(fault, marks=folders[0]) for fault in faults)


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
            if fault.point is point and fault.is_due(passage) and _is_first(fault):
                _do(fault)


def arms_of(text: str) -> Arms:
    """What `kvcluster.failpoints.arm_with` arms a process with. Raises as `parse_faults`."""
    return Arms(parse_faults(text))


@contextmanager
def armed(text: str) -> Iterator[Arms]:
    """Arm this process for the length of a block."""
    arms = arms_of(text)
    arm(arms)
    try:
        yield arms
    finally:
        arm(None)


def marks_in(folder: Path) -> dict[str, list[int]]:
    """What happened so far, by the fault's name: the process of each act."""
    return {file.name: [int(line) for line in file.read_text().split()] for file in sorted(folder.iterdir())}


def _parse(part: str) -> Fault:
    where, equals, what = part.partition("=")
    kind, colon, name = where.rpartition(":")
    if not equals or name not in _POINTS:
        near = get_close_matches(name, _POINTS, 1)
        known = f"did you mean {near[0]}? " if near and near[0] != name else ""
        raise ValueError(
            f"{part!r} names no failpoint: {known}write NAME=ACTION (kvcluster failpoints lists the names)"
        )
    point = _POINTS[name]
    if colon and kind not in point.passers:
        raise ValueError(f"{kind!r} names no kind of process that passes {name}: {', '.join(point.passers)} do")
    what, _, passage = what.partition("@")
    action, _, argument = what.partition(":")
    if action not in _ACTIONS or bool(argument) != _ACTIONS[action]:
        raise ValueError(f"{what!r} is no action: write raise, delay:SECONDS, hang:FILE, lose, kill or exit")
    if action == "delay" and not _is_seconds(argument):
        raise ValueError(f"{argument!r} are no seconds to wait: write a number from 0 to {MOST_DELAY_S:.0f}")
    if action == "lose" and point is not Failpoint.CLIENT_REPLY:
        raise ValueError(f"{what!r} is no action at {name}: a reply is lost where it arrives")
    which, percent = _passage(passage)
    return Fault(point, action, argument, which, percent, Passer(kind) if colon else None)


def _is_seconds(text: str) -> bool:
    try:
        return 0.0 <= float(text) <= MOST_DELAY_S
    except ValueError:
        return False


def _passage(text: str) -> tuple[int | None, int]:
    """The passage, or how many of a hundred."""
    if text == "*":
        return None, 0
    number = text.removesuffix("%")
    if (text and not (number.isdecimal() and int(number))) or (text.endswith("%") and int(number) > 100):
        raise ValueError(f"{text!r} is no passage: they are counted from 1, * is each, and 10% ten of each hundred")
    return (None, int(number)) if text.endswith("%") else (int(text or 1), 0)


def _is_first(fault: Fault) -> bool:
    """Leave the mark; whether nobody had done so before, where that matters."""
    if not fault.marks:
        return True
    only_once = os.O_EXCL if fault.passage is not None else 0
    try:
        mark = os.open(Path(fault.marks, fault.name), os.O_WRONLY | os.O_CREAT | os.O_APPEND | only_once, 0o600)
    except FileExistsError:
        return False
    try:
        os.write(mark, f"{os.getpid()}\n".encode())
    finally:
        os.close(mark)
    return True


def _do(fault: Fault) -> None:
    match fault.action:
        case "raise":
            raise DriverError(call=fault.point, code=errno.EIO, name="EIO")
        case "delay":
            time.sleep(float(fault.argument))
        case "hang":
            _hang(Path(fault.argument))
        case "lose":
            raise ReplyLost("the reply was lost on the way")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case _:
            os._exit(EXIT_STATUS)


def _hang(file: Path) -> None:
    file.touch()
    while file.exists():
        time.sleep(_POLL_S)
