"""One worker's place at a device: the actor that sits in it, what it is waited for, and what was done from it.

Actors die and are replaced; the seat stays, and keeps the sum of what they did. Values and arithmetic; what is asked
of an actor, and when, is `actors.workers`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from actors.site import Place
from actors.spec import Opened, Placed, WorkerFigures
from kvcluster.driver.exits import Watched
from kvcluster.services.completion import Completion, Refused
from kvcluster.states import moved

NOTHING = WorkerFigures()
REAPED_WITHIN_S = 2.0  # of Ray's word that the process died; measured: one death in six is told before, by 5 ms


class Stage(Enum):
    """How far the actor of a seat has come."""

    EMPTY = auto()  # none that has a process yet, or it is gone
    PLACED = auto()  # it has a process
    READY = auto()  # it has loaded the model


STAGES = {
    Stage.EMPTY: frozenset({Stage.EMPTY, Stage.PLACED}),
    Stage.PLACED: frozenset({Stage.EMPTY, Stage.READY}),
    Stage.READY: frozenset({Stage.EMPTY}),
}


@dataclass(slots=True)
class Seat:
    """`device` is its name, a GPU's UUID; empty until Ray has given one. `pages` are the actor's host pages, if any.

    `session` is the actor's with its device; `watched` is its process, where it is one of this machine: its end is
    asked about.

    `awaited` is the actor's place, its start, or its long poll; `silent_s` how long it was listened to without a reply.

    `requests` and `tokens` were answered from this seat, by whichever actor sat in it. `pid` is the actor's process;
    0 where it has none.
    `told` is what the actor last said that it did, `before` what the actors before it did.
    """

    number: int
    device: str
    actor: Any = None
    awaited: Any = None
    stage: Stage = Stage.EMPTY
    pid: int = 0
    pages: str = ""
    silent_s: float = 0.0
    restarts: int = 0
    requests: int = 0
    tokens: int = 0
    told: WorkerFigures = NOTHING
    before: WorkerFigures = NOTHING
    node_id: str = ""
    session: str = ""
    watched: Watched | None = None

    @property
    def place(self) -> Place:
        """Where it is, by now."""
        return Place(self.node_id, self.device)

    @property
    def is_ready(self) -> bool:
        """The actor has loaded the model."""
        return self.stage is Stage.READY

    def ending(self) -> str:
        """How the actor's process ended, by the kernel's word, which comes a moment later than Ray's; empty where that
        is not known.
        """
        return self.watched.ending_within(REAPED_WITHIN_S) if self.watched else ""

    @property
    def figures(self) -> WorkerFigures:
        """All that was done from this seat, as far as it was told."""
        return self.before.beside(self.told)

    def find_place(self) -> None:
        """The actor that is to sit here was made."""
        self.listen(self.actor.place.remote())

    def is_placed(self, placed: Placed) -> None:
        """The actor has a process, and says where it is to be."""
        self._move(Stage.PLACED)
        self.device, self.pid = placed.device, placed.pid

    def open(self) -> None:
        """The actor that has the place is on its way."""
        self.listen(self.actor.open.remote())

    def is_open(self, opened: Opened) -> None:
        """The actor is ready, and says where it is."""
        self._move(Stage.READY)
        self.device, self.pages = opened.device, opened.pages
        self.session = opened.session

    def listen(self, awaited: Any) -> None:
        """From now on this is what its actor is waited for."""
        self.awaited, self.silent_s = awaited, 0.0

    def leave(self) -> None:
        """The actor is gone, and nobody is waited for."""
        self._move(Stage.EMPTY)
        self.before, self.told = self.figures, NOTHING
        self.awaited, self.pid, self.session = None, 0, ""
        self.watch(None)

    def watch(self, process: Watched | None) -> None:
        """From now on it is this process, or none, whose end is asked about."""
        if self.watched is not None:
            self.watched.close()
        self.watched = process

    def answered(self, outcome: Completion | Refused) -> None:
        self.requests += 1
        self.tokens += outcome.completion_tokens if isinstance(outcome, Completion) else 0

    def _move(self, stage: Stage) -> None:
        self.stage = moved(self.stage, stage, STAGES)


def together(figures: Iterable[WorkerFigures]) -> WorkerFigures:
    """What was done from several seats."""
    total = NOTHING
    for each in figures:
        total = total.beside(each)
    return total
