"""What is done to whom: every failpoint for every kind of process that passes it, and what is no place in the code.

Cases are data. Where a fault can only happen after another one (who is started again must first have died) the text
names both, and a case fails unless all of its text happened. A new failpoint has its cases by itself, as far as a load
passes it; `tests/chaos/test_cases.py` says where one is left without.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from kvcluster.failpoints import Failpoint, Passer


class Act(StrEnum):
    """How a case is played: see `tests.chaos.play`."""

    ARMED = "armed"  # the text is told to all that run, and then the load is run
    HELD = "held"  # its last fault is that of a process which is started meanwhile
    STOPPED = "stopped"  # a process of that kind is stopped in the middle of the run, and goes on after a while
    ENDING = "ending"  # the text is told, and the workers are ended
    IDLE = "idle"  # the owners have nobody left, and leave
    JOB = "job"  # the command dies, and is run again
    NODE = "node"  # a node of three is gone in the middle of the run


@dataclass(frozen=True, slots=True)
class Case:
    """`kind` is who is hurt, `load` what runs. A process of the kind `stops` is stopped for so many `seconds`."""

    name: str
    kind: Passer | str
    load: str
    act: Act
    text: str = ""
    stops: Passer | None = None
    seconds: float = 0.0

    @property
    def held(self) -> str:
        """The fault of whoever is started meanwhile; empty for another act."""
        return self.text.rpartition(";")[2].strip() if self.act is Act.HELD else ""


WORKER_DIES = "request.step.computed=kill@4"
DEVICE_DIES = "device:device.frame.stored=kill@6"  # by then clients have memory of it
PAGES_DIE = "pages.grow.charged=kill@3"
OWNER_DIES = {Passer.DEVICE: DEVICE_DIES, Passer.PAGES: PAGES_DIE}

ELSEWHERE = {
    Failpoint.PAGES_SHARED: "tests/pages/test_passed_points.py",  # no loop of ours shares pages before a sequence ends
}
"""Places that no job passes."""

_RINGS = ("publish", "seal", "join", "leave")
_RARE = {Failpoint.REQUEST_FLEEING, Failpoint.REQUEST_RETURNING, Failpoint.PAGES_FORKED, Failpoint.DEVICE_KEPT}
_STARTED = {  # passed by who is started, after it died once
    Failpoint.REQUEST_STARTED,
    Failpoint.REQUEST_OPENED,
    Failpoint.CLIENT_HELLO,
    Failpoint.CLIENT_WELCOMED,
    Failpoint.CLIENT_ADOPTED,
}
_OWNER_STARTED = {
    Failpoint.OWNER_OPENED,
    Failpoint.OWNER_SERVING,
    Failpoint.OWNER_LOCKED,
    Failpoint.DEVICE_REGISTERED,
}
_AFTER_A_WORKER = {
    Failpoint.OWNER_WELCOMED,
    Failpoint.OWNER_DISCONNECTED,
    Failpoint.OWNER_GONE,
    Failpoint.DEVICE_LEFT_BEHIND,
    Failpoint.DEVICE_ADOPTED,
}
_AFTER_A_DEVICE = {Failpoint.CLIENT_REGISTERS, Failpoint.CLIENT_REGISTERED}
_FENCED = {Failpoint.OWNER_FENCED, Failpoint.OWNER_SURRENDERED, Failpoint.CLIENT_SURRENDERING}
LONGER_THAN_A_LEASE_S, UNTIL_IT_IS_GIVEN_UP_S = 7.0, 12.0  # of 5 s; the job gives a worker up after 10


def all_cases() -> tuple[Case, ...]:
    """Every case, those of one load beside each other."""
    points = [_case(point, kind) for point in Failpoint for kind in point.passers if point not in ELSEWHERE]
    return tuple(sorted([*points, *_lost(), *_stopped(), *_removed()], key=lambda case: (case.act, case.load)))


def _case(point: Failpoint, kind: Passer) -> Case:
    name, load = f"{kind} at {point}", _load_of(point, kind)
    fault = f"{kind}:{point}=kill@{_passage(point)}"
    if kind is Passer.JOB:
        text = f"{WORKER_DIES}; {point}=kill@1" if point is Failpoint.JOB_LOST else f"{point}=kill@1"
        return Case(name, kind, load, Act.JOB, text)
    if point is Failpoint.OWNER_LEAVING:
        return Case(name, kind, load, Act.IDLE, f"{kind}:{point}=kill@1")
    if point is Failpoint.REQUEST_STOPPING:
        return Case(name, kind, load, Act.ENDING, f"{kind}:{point}=kill@1")
    if point in _STARTED:
        return Case(name, kind, load, Act.HELD, f"{WORKER_DIES}; {kind}:{point}=kill@1")
    if point in _OWNER_STARTED:
        return Case(name, kind, load, Act.HELD, f"{OWNER_DIES[kind]}; {kind}:{point}=kill@1")
    hands_over_once = point is Failpoint.OWNER_HANDING and kind is Passer.PAGES  # all pages, to each new client
    if point in _AFTER_A_WORKER or hands_over_once:
        return Case(name, kind, load, Act.ARMED, f"{WORKER_DIES}; {kind}:{point}=kill@1")
    if point in _AFTER_A_DEVICE:
        return Case(name, kind, load, Act.ARMED, f"{DEVICE_DIES}; {kind}:{point}=kill@1")
    if point in _FENCED:
        text = f"{kind}:{point}=kill@1"
        return Case(name, kind, load, Act.STOPPED, text, Passer.REQUEST, LONGER_THAN_A_LEASE_S)
    return Case(name, kind, load, Act.ARMED, fault)


def _load_of(point: Failpoint, kind: Passer) -> str:
    _, act, _ = point.split(".")
    if kind is Passer.PAGES or act in ("pages", "move"):
        return "pages"
    if act in ("successor", "step"):
        return "heirs"
    return "rings" if act in _RINGS else "grow"


def _passage(point: Failpoint) -> int:
    return 1 if point in _RARE or point.split(".")[1] in _RINGS else 2


def _lost() -> list[Case]:
    return [
        Case(f"{percent} % of replies lost", Passer.REQUEST, load, Act.ARMED, f"client.reply.arrived=lose@{percent}%")
        for percent in (1, 10, 50)
        for load in ("grow", "pages")
    ]


def _stopped() -> list[Case]:
    return [
        Case(f"{kind} stopped for {seconds:.0f} s", kind, "pages", Act.STOPPED, "", kind, seconds)
        for kind in (Passer.REQUEST, Passer.DEVICE, Passer.PAGES)
        for seconds in (2.0, LONGER_THAN_A_LEASE_S, UNTIL_IT_IS_GIVEN_UP_S)
    ]


def _removed() -> list[Case]:
    return [Case("a node of three removed", "node", "grow", Act.NODE)]


_SLICE = (
    "request at client.commit.mapped",
    "request at client.pages.writable",
    "device at device.frame.stored",
    "pages at pages.grow.charged",
    "10 % of replies lost",
    "request stopped for 2 s",
    "device stopped for 7 s",
)


def slice_of_cases() -> tuple[Case, ...]:
    """A spread over every kind of actor, all on the load that has them all."""
    named = {case.name: replace(case, load="pages") for case in all_cases()}
    return tuple(named[name] for name in _SLICE)
