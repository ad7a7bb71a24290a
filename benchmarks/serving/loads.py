"""Loads: a closed loop that keeps so many requests under way, and an open one whose clients come whatever happens.

A client of the open loop that is told 429 or 503 comes back: one that obeys, when Retry-After says so; one that does
not, after IMPATIENT_S. Each gives up after its patience, or after MOST_TRIES if it does not obey. Arrivals are drawn
once from a seeded Poisson process, so that arms of a comparison get the same ones.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.serving.client import Answer, Ending, Target, ask

Bodies = Callable[[], Mapping[str, Any]]  # of the next request

IMPATIENT_S = 1.0
MOST_TRIES = 5  # of a client that does not obey
RAMP_S = 2.0
DRAIN_S = 60.0  # for what is under way when a load ends
COME_BACK = (429, 503)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """`share_obeying` of the clients obey Retry-After; each waits `patience_s` in all."""

    rate: float
    seconds: float
    share_obeying: float = 0.8
    patience_s: float = 30.0
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Visit:
    """One client of an open loop: all that it was answered, the last one last."""

    obeys: bool
    answers: tuple[Answer, ...]


@dataclass(frozen=True, slots=True)
class Load:
    """What a load was answered between `began_s` and `ended_s`, and after it what was under way by then."""

    began_s: float
    ended_s: float
    visits: Sequence[Visit]

    @property
    def answers(self) -> list[Answer]:
        return [answer for visit in self.visits for answer in visit.answers]

    @property
    def whole(self) -> list[Answer]:
        return [answer for answer in self.answers if answer.ending is Ending.DONE]

    @property
    def goodput(self) -> float:
        """Tokens a second that came within the load's time, but for its first seconds, of answers that came whole."""
        began_s = self.began_s + RAMP_S
        came = [_share_between(answer, began_s, self.ended_s) * answer.tokens for answer in self.whole]
        return sum(came) / (self.ended_s - began_s)


def _share_between(answer: Answer, began_s: float, ended_s: float) -> float:
    """Of an answer's events."""
    return sum(began_s <= at_s < ended_s for at_s in answer.arrivals_s) / max(1, len(answer.arrivals_s))


async def closed_loop(target: Target, bodies: Bodies, *, streams: int, seconds: float) -> Load:
    """Each of so many clients asks again as soon as it was answered; a refused one waits as it is told."""
    began_s = time.perf_counter()
    ended_s = began_s + seconds

    async def client() -> Visit:
        answers: list[Answer] = []
        while time.perf_counter() < ended_s:
            answers.append(await ask(target, bodies()))
            if answers[-1].status in COME_BACK:
                await asyncio.sleep(min(answers[-1].retry_after_s or IMPATIENT_S, ended_s - time.perf_counter()))
            elif answers[-1].ending is not Ending.DONE:
                await asyncio.sleep(0.1)  # an endpoint that is gone is not asked a thousand times a second
        return Visit(True, tuple(answers))

    visits = await asyncio.gather(*(client() for _ in range(streams)))
    return Load(began_s, ended_s, visits)


async def open_loop(target: Target, bodies: Bodies, arrivals: Arrivals) -> Load:
    """Clients come at the rate. When the time is over, those that wait to come back are let go."""
    began_s = time.perf_counter()
    ended_s = began_s + arrivals.seconds
    visits: list[asyncio.Task[Visit]] = []
    for at_s, obeys in _drawn(arrivals):
        await asyncio.sleep(began_s + at_s - time.perf_counter())
        visits.append(asyncio.create_task(_visit(target, bodies(), obeys, min(ended_s, _given_up_s(arrivals)))))
    await asyncio.sleep(ended_s - time.perf_counter())
    done, late = await asyncio.wait(visits, timeout=DRAIN_S)
    for task in late:
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    return Load(began_s, ended_s, [task.result() for task in done] + [_never_answered(ended_s)] * len(late))


def _given_up_s(arrivals: Arrivals) -> float:
    return time.perf_counter() + arrivals.patience_s


def _never_answered(asked_s: float) -> Visit:
    """A stream that said nothing more for DRAIN_S after the load's end is lost."""
    return Visit(True, (Answer(asked_s, time.perf_counter(), 0, Ending.LOST, body="no end"),))


def _drawn(arrivals: Arrivals) -> Iterator[tuple[float, bool]]:
    """When each client comes, and whether it obeys."""
    chance = random.Random(arrivals.seed)
    at_s = chance.expovariate(arrivals.rate)
    while at_s < arrivals.seconds:
        yield at_s, chance.random() < arrivals.share_obeying
        at_s += chance.expovariate(arrivals.rate)


async def _visit(target: Target, body: Mapping[str, Any], obeys: bool, until_s: float) -> Visit:
    answers: list[Answer] = []
    while True:
        answers.append(await ask(target, body))
        last = answers[-1]
        if last.status not in COME_BACK or (not obeys and len(answers) == MOST_TRIES):
            break
        wait_s = (last.retry_after_s or IMPATIENT_S) if obeys else IMPATIENT_S
        if time.perf_counter() + wait_s >= until_s:
            break
        await asyncio.sleep(wait_s)
    return Visit(obeys, tuple(answers))
