"""Requests given to an engine when they come, and what became of each: the same loop for every engine that steps.

One thread: what has come is let in, the engine computes a step, what it said is written down. No engine is told of a
request before it comes, and none waits longer than a step for one that came.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

IDLE_S = 0.001


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request of a load: when it comes, after the load's beginning, and what it wants."""

    at_s: float
    prompt: tuple[int, ...]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Progress:
    """What a step did for the request `key`: so many tokens more. With `error` it ended without its answer."""

    key: int
    tokens: int
    is_done: bool = False
    error: str | None = None


@dataclass(slots=True)
class Served:
    """What became of one arrival; times after the load's beginning, None where it did not happen."""

    first_s: float | None = None
    done_s: float | None = None
    tokens: int = 0
    error: str | None = None

    @property
    def has_ended(self) -> bool:
        return self.done_s is not None or self.error is not None

    def take(self, progress: Progress, now_s: float) -> None:
        self.tokens += progress.tokens
        self.error = progress.error
        if progress.tokens and self.first_s is None:
            self.first_s = now_s
        if progress.is_done and not progress.error:
            self.done_s = now_s


class Steps(Protocol):
    """An engine as a load sees it."""

    def begin(self, key: int, arrival: Arrival) -> None: ...

    def step(self) -> Iterable[Progress]:
        """One step; nothing, and at once, where there is nothing to compute."""


def run_load(engine: Steps, arrivals: Sequence[Arrival], limit_s: float) -> list[Served]:
    """Until all ended, or `limit_s` after the beginning; in the order of `arrivals`, which is that of time."""
    served = [Served() for _ in arrivals]
    waiting = list(enumerate(arrivals))
    began = time.perf_counter()
    while not all(one.has_ended for one in served) and (now := time.perf_counter() - began) < limit_s:
        while waiting and waiting[0][1].at_s <= now:
            engine.begin(*waiting.pop(0))
        said = list(engine.step())
        for progress in said:
            served[progress.key].take(progress, time.perf_counter() - began)
        if not said:
            time.sleep(IDLE_S)
    return served
