"""Which of the entries that nobody uses goes next: the one whose memory is worth least where it is.

What an entry is worth is learned from the load itself, for entries that were used as often and are as old
(`index.worth`). Those last used together are one run, whose use and age are kept once: a prompt's blocks are few runs,
used again in a few calls over a list. Those that went are remembered for a while, so that a use of what is gone teaches
too. A few idle entries are looked at for each that goes, a bounded part of all for each learning: O(1), without order.

Recency alone throws a conversation away while its user thinks; frequency alone keeps what was popular once. Figures on
a real trace and on made ones, beside LRU, ARC and the optimum: `benchmarks/bench_prefix_policy.py`,
docs/decisions/0013. It is no index: who has which tokens, and what builds on what, is its caller's to know.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Generic, TypeVar

from kvcluster.index.urn import Urn
from kvcluster.index.worth import Worth

K = TypeVar("K")

KINDS = 4  # used once, twice, three times, or more often
SAMPLE = 32  # idle entries that are looked at for one that goes
POPULATION = 1_024  # entries of which the exposure of all is told
GHOSTS = 4  # entries that went are remembered, for each that is there
LEAST_PERIOD = 512  # uses from one learning to the next; else as many as there are entries


@dataclass(slots=True, eq=False)
class _Run(Generic[K]):
    """So many entries (`size`) that were last used one after the other; also those of it that went, as one more."""

    kind: int  # how often they were used, less one
    used_at: int  # the first of them
    size: int
    keys: list[K]  # theirs, the first last, and perhaps of some that are in it no more
    idle_at: int = 0  # since when, if it is idle, as whoever said so counts
    went: _Run[K] | None = None


class Retention(Generic[K]):
    """Of one tenant's entries. Keys stand for content, so that what went and comes again is no stranger.

    A call names each key once, and what builds on another behind it.
    """

    def __init__(self) -> None:
        self._runs: dict[K, _Run[K]] = {}
        self._ghosts: OrderedDict[K, _Run[K]] = OrderedDict()  # those that went, the longest ago first
        self._all: Urn[_Run[K]] = Urn()  # of both
        self._idle: Urn[_Run[K]] = Urn()
        self._chance = random.Random(0)  # no secret: which entry of a run is looked at
        self._uses = 0
        self._learned_at = 0
        self._worth = Worth(KINDS)

    def __len__(self) -> int:
        """How many are idle."""
        return self._idle.weight

    def use(self, *keys: K) -> None:
        """Somebody uses these, from now on or once more: they are not idle."""
        now = self._uses + 1
        self._uses += len(keys)
        together: dict[int, tuple[int, list[K]]] = {}
        for run, part in self._parts(keys):
            if run is None:
                for at, key in enumerate(part, now):
                    together.setdefault(self._kind_of_new(key, at), (at, []))[1].append(key)
            else:
                self._worth.hit(run.kind, now - run.used_at, times=len(part))
                if len(part) == run.size == len(keys):
                    self._used_again(run, now)
                    return
                together.setdefault(_next(run.kind), (now, []))[1].extend(part)
                self._shrink(run, len(part))
            now += len(part)
        for kind, (used_at, used) in together.items():
            self._begin(kind, used_at, used)

    def hold(self, *keys: K) -> None:
        """Somebody may come to use these: they are not idle until somebody says so, and it is no use yet."""
        for run, part in self._parts(keys):
            if run is not None and run in self._idle:
                self._idle.take(self._apart(run, part))

    def idle(self, *keys: K, at: int = 0) -> None:
        """Nobody uses these any more, since `at`. One that was never used is as if it were, now."""
        for run, part in self._parts(keys):
            if run is None:
                self.use(*part)
                self.idle(*part, at=at)
            elif run not in self._idle:
                run = self._apart(run, part)
                run.idle_at = at
                self._idle.put(run, run.size)

    def idle_since(self, key: K) -> int:
        """What was said when this one became idle. Raises KeyError for one that is not here."""
        return self._runs[key].idle_at

    def victim(self) -> K | None:
        """The next to go, of those that are idle; None where none is. It stays until it is forgotten.

        Others may be looked at when it is asked for again: who needs one answer twice keeps it.
        """
        if not self._idle:
            return None
        if self._uses - self._learned_at >= max(LEAST_PERIOD, len(self._runs)):
            self._learn()
        # a run as often as it has entries: each alike finds half a point less on the trace
        seen = [(run, self._age(run)) for run in self._idle.some(SAMPLE)]
        run, _ = min(seen, key=lambda each: (self._worth.of(each[0].kind, each[1]), -each[1]))
        while self._runs.get(run.keys[-1]) is not run:
            run.keys.pop()
        return run.keys[-1]

    def forget(self, key: K) -> None:
        """It is gone. One that is not known is none."""
        run = self._runs.pop(key, None)
        if run is None:
            return
        if run.went is None or not run.went.size:
            run.went = _Run(run.kind, run.used_at, 0, [])
        run.went.size += 1
        self._all.put(run.went, run.went.size)
        self._ghosts[key] = run.went
        self._shrink(run, 1)
        while len(self._ghosts) > GHOSTS * max(len(self._runs), SAMPLE):
            _, oldest = self._ghosts.popitem(last=False)
            self._worth.ended(oldest.kind, self._uses - oldest.used_at)
            self._shrink(oldest, 1)

    @property
    def entries(self) -> int:
        """How many are here, idle or not."""
        return len(self._runs)

    @property
    def remembered(self) -> int:
        """How many entries that went are remembered."""
        return len(self._ghosts)

    def _parts(self, keys: Sequence[K]) -> Iterator[tuple[_Run[K] | None, Sequence[K]]]:
        """Neighbours of one run, or of none."""
        runs = list(map(self._runs.get, keys))
        if runs and runs.count(runs[0]) == len(runs):  # a fifth of the time of what is below
            yield runs[0], keys
            return
        end = 0
        for run, same in groupby(runs):
            begin, end = end, end + len(list(same))
            yield run, keys[begin:end]

    def _kind_of_new(self, key: K, now: int) -> int:
        """Of one that is used and was not here: it may have been."""
        went = self._ghosts.pop(key, None)
        if went is None:
            return 0
        self._worth.hit(went.kind, now - went.used_at)
        self._shrink(went, 1)
        return _next(went.kind)

    def _used_again(self, run: _Run[K], now: int) -> None:
        """All of it."""
        run.kind, run.used_at, run.went = _next(run.kind), now, None
        if run in self._idle:
            self._idle.take(run)

    def _begin(self, kind: int, used_at: int, keys: Sequence[K]) -> _Run[K]:
        """These are one run from now on, which is not idle."""
        run = _Run(kind, used_at, len(keys), list(reversed(keys)))
        self._runs.update(dict.fromkeys(keys, run))
        self._all.put(run, run.size)
        return run

    def _apart(self, run: _Run[K], keys: Sequence[K]) -> _Run[K]:
        """A run of these of its entries, as idle as it was; itself where they are all of it."""
        if len(keys) == run.size:
            return run
        self._shrink(run, len(keys))
        part = self._begin(run.kind, run.used_at, keys)
        if run in self._idle:
            part.idle_at = run.idle_at
            self._idle.put(part, part.size)
        return part

    def _shrink(self, run: _Run[K], entries: int) -> None:
        """So many are in it no more, and it is no more when none is."""
        run.size -= entries
        for urn in (self._all, self._idle):
            if run in urn:
                urn.put(run, run.size)
        if len(run.keys) > 2 * run.size:
            run.keys = [key for key in run.keys if self._runs.get(key) is run]

    def _age(self, run: _Run[K]) -> int:
        """Of any one of its entries."""
        return max(0, self._uses - run.used_at - int(self._chance.random() * run.size))

    def _learn(self) -> None:
        """From a part of all that wait for a use: those that are here, and those that went."""
        self._learned_at = self._uses
        part = self._all.some(POPULATION)
        waiting = [(run.kind, self._age(run)) for run in part]
        self._worth.learn(waiting, weight=self._all.weight / len(part), doubt=len(self._runs))


def _next(kind: int) -> int:
    return min(kind + 1, KINDS - 1)
