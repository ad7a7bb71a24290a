"""Which of the entries that nobody uses goes next: the one whose memory is worth least where it is.

An entry's worth is its Gittins index: over all horizons, the most hits to expect for the time that it is kept. What to
expect is learned from the load itself, for entries that were used as often and are as old: the hazard of another use,
hits over exposure, where entries that still wait for one count as exposure too (Kaplan and Meier), and so do those that
went and are remembered for a while. Ages are counted in uses, and told apart by half octaves; nothing here knows a
size, a time or a trace. One in a few idle entries is looked at for each that goes: O(1), and no order is kept.

Recency alone throws a conversation away while its user thinks; frequency alone keeps what was popular once. Figures on
a real trace, and on made ones, beside LRU, ARC and the optimum: `benchmarks/bench_prefix_policy.py`, docs/decisions.
Sources: J. C. Gittins, "Bandit processes and dynamic allocation indices" (1979); N. Beckmann et al., "LHD: improving
cache hit rate by maximizing hit density" (2018).
"""

from __future__ import annotations

import random
from collections import OrderedDict
from dataclasses import dataclass
from math import expm1
from typing import Generic, TypeVar

K = TypeVar("K")

CLASSES = 6  # used once, twice, ..., this often or more
BINS = 64  # of age: the last is of more than 4,000 million uses
SAMPLE = 32  # idle entries that are looked at for one that goes
POPULATION = 1_024  # entries of which the exposure of all is told
GHOSTS = 4  # entries that went are remembered, for each that is there
LEAST_PERIOD = 512  # uses from one learning to the next; else as many as there are entries
KEPT = 0.9  # of what was learned, from one learning to the next


@dataclass(slots=True, eq=False)
class _Entry(Generic[K]):
    key: K
    kind: int  # how often it was used, less one
    used_at: int
    place: int = -1  # among the idle ones


class Retention(Generic[K]):
    """Of one tenant's entries. Keys stand for content, so that what went and comes again is no stranger."""

    def __init__(self) -> None:
        self._entries: dict[K, _Entry[K]] = {}
        self._idle: list[_Entry[K]] = []
        self._ghosts: OrderedDict[K, tuple[int, int]] = OrderedDict()  # kind and last use, the oldest first
        self._uses = 0
        self._learned_at = 0
        self._lessons = _Lessons()
        self._chance = random.Random(0)  # no secret: which entries are looked at

    def __len__(self) -> int:
        """How many are idle."""
        return len(self._idle)

    def use(self, key: K) -> None:
        """Somebody uses it, from now on or once more: it is not idle."""
        self._uses += 1
        entry = self._entries.get(key)
        if entry is None:
            self._entries[key] = _Entry(key, self._kind_of(key), self._uses)
            return
        if entry.place >= 0:
            self._leave_idle(entry)
        self._hit(entry.kind, entry.used_at)
        entry.kind = min(entry.kind + 1, CLASSES - 1)
        entry.used_at = self._uses

    def idle(self, key: K) -> None:
        """Nobody uses it any more. One that was never used is as if it were, now."""
        if key not in self._entries:
            self.use(key)
        entry = self._entries[key]
        if entry.place < 0:
            entry.place = len(self._idle)
            self._idle.append(entry)

    def victim(self) -> K | None:
        """The next to go, of those that are idle; None where none is. It stays until it is forgotten."""
        if not self._idle:
            return None
        if self._uses - self._learned_at >= max(LEAST_PERIOD, len(self._entries)):
            self._learn()
        idle, pick = self._idle, self._chance.random
        looked_at = idle if len(idle) <= SAMPLE else [idle[int(pick() * len(idle))] for _ in range(SAMPLE)]
        worth, now = self._lessons.worth, self._uses
        return min(looked_at, key=lambda e: (worth[e.kind][_bin(now - e.used_at)], e.used_at)).key

    def forget(self, key: K) -> None:
        """It is gone. One that is not known is none."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        if entry.place >= 0:
            self._leave_idle(entry)
        self._ghosts[key] = entry.kind, entry.used_at
        while len(self._ghosts) > GHOSTS * max(len(self._entries), SAMPLE):
            _, (kind, used_at) = self._ghosts.popitem(last=False)
            self._lessons.ends[kind][_bin(self._uses - used_at)] += 1

    @property
    def remembered(self) -> int:
        """How many entries that went are remembered."""
        return len(self._ghosts)

    def _kind_of(self, key: K) -> int:
        """Of an entry that is new here, or comes again."""
        ghost = self._ghosts.pop(key, None)
        if ghost is None:
            return 0
        self._hit(*ghost)
        return min(ghost[0] + 1, CLASSES - 1)

    def _hit(self, kind: int, used_at: int) -> None:
        self._lessons.hits[kind][_bin(self._uses - used_at)] += 1

    def _leave_idle(self, entry: _Entry[K]) -> None:
        last = self._idle.pop()
        if last is not entry:
            self._idle[entry.place] = last
            last.place = entry.place
        entry.place = -1

    def _learn(self) -> None:
        """Who waits now, told from a part of all, and what all that was seen comes to."""
        self._learned_at = self._uses
        waiting = [[0.0] * BINS for _ in range(CLASSES)]
        for standing in ([(e.kind, e.used_at) for e in self._entries.values()], list(self._ghosts.values())):
            part = standing if len(standing) <= POPULATION else self._chance.sample(standing, POPULATION)
            for kind, used_at in part:
                waiting[kind][_bin(self._uses - used_at)] += len(standing) / len(part)
        self._lessons.learn(waiting, doubt=len(self._entries))


class _Lessons:
    """By kind and age: how often a use followed, how often none did, and what an entry is worth for it."""

    def __init__(self) -> None:
        self.hits = [[0.0] * BINS for _ in range(CLASSES)]
        self.ends = [[0.0] * BINS for _ in range(CLASSES)]
        self.worth = [[(kind + 1.0) / (1 << min(age, BINS)) for age in range(BINS)] for kind in range(CLASSES)]

    def learn(self, waiting: list[list[float]], *, doubt: int) -> None:
        """`waiting` entries of each kind and age wait still; `doubt` is exposure that is added everywhere."""
        for kind in range(CLASSES):
            hits, ends = self.hits[kind], self.ends[kind]
            self.worth[kind] = _worth(
                hits, [h + e + w for h, e, w in zip(hits, ends, waiting[kind], strict=True)], doubt
            )
            self.hits[kind] = [KEPT * h for h in hits]
            self.ends[kind] = [KEPT * e for e in ends]


def _worth(hits: list[float], seen: list[float], doubt: int) -> list[float]:
    """For each age, of entries of which so many were `seen` up to that age and so many had a hit there."""
    hazards, older = [0.0] * BINS, 0.0
    for age in reversed(range(BINS)):
        exposure = (older + seen[age] / 2) * _WIDTHS[age]
        hazards[age] = hits[age] / (exposure + doubt) if hits[age] else 0.0
        older += seen[age]
    last = max((age for age in range(BINS) if hits[age]), default=-1)
    return [_most_dense(hazards, age, last) for age in range(BINS)]


def _most_dense(hazards: list[float], age: int, last: int) -> float:
    """The most hits for the time that an entry of this age is kept, over all horizons up to age `last`."""
    alive, hits, time, best = 1.0, 0.0, 0.0, 0.0
    for at in range(age, last + 1):
        hazard, width = hazards[at], _WIDTHS[at]
        ends = -expm1(-hazard * width)
        hits += alive * ends
        time += alive * (ends / hazard if hazard else width)
        alive *= 1 - ends
        best = max(best, hits / time)
    return best


def _bin(age: int) -> int:
    """Half octaves: ages of 2**(b / 2) to 2**((b + 1) / 2)."""
    return min((age * age).bit_length(), BINS - 1)


_WIDTHS = [2 ** (b / 2) - (2 ** ((b - 1) / 2) if b else 0) for b in range(BINS)]
