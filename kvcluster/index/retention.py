"""Which of the entries that nobody uses goes next: the one whose memory is worth least where it is.

What an entry is worth is learned from the load itself, for entries that were used as often and are as old
(`index.worth`). Those that went are remembered for a while, so that a use of what is gone teaches too, and what comes
again is no stranger. A few idle entries are looked at for each that goes, and a bounded part of all for each learning:
O(1), and no order is kept.

Recency alone throws a conversation away while its user thinks; frequency alone keeps what was popular once. Figures on
a real trace and on made ones, beside LRU, ARC and the optimum: `benchmarks/bench_prefix_policy.py`,
docs/decisions/0013. It is no index: who has which tokens, and what builds on what, is its caller's to know.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

from kvcluster.index.worth import Worth

K = TypeVar("K")

KINDS = 4  # used once, twice, three times, or more often
SAMPLE = 32  # idle entries that are looked at for one that goes
POPULATION = 1_024  # entries of which the exposure of all is told
GHOSTS = 4  # entries that went are remembered, for each that is there
LEAST_PERIOD = 512  # uses from one learning to the next; else as many as there are entries


@dataclass(slots=True, eq=False)
class _Entry(Generic[K]):
    key: K
    used_at: int
    place: int  # among all that are remembered
    idle_place: int | None = None  # among the idle ones, if it is one
    kind: int = 0  # how often it was used, less one


class Retention(Generic[K]):
    """Of one tenant's entries. Keys stand for content, so that what went and comes again is no stranger."""

    def __init__(self) -> None:
        self._entries: dict[K, _Entry[K]] = {}
        self._ghosts: OrderedDict[K, _Entry[K]] = OrderedDict()  # those that went, the longest ago first
        self._all: list[_Entry[K]] = []  # both of them
        self._idle: list[_Entry[K]] = []
        self._uses = 0
        self._learned_at = 0
        self._worth = Worth(KINDS)
        self._chance = random.Random(0)  # no secret: which entries are looked at

    def __len__(self) -> int:
        """How many are idle."""
        return len(self._idle)

    def use(self, key: K) -> None:
        """Somebody uses it, from now on or once more: it is not idle."""
        self._uses = now = self._uses + 1
        entry = self._entries.get(key)
        if entry is None:
            entry = self._ghosts.pop(key, None) or self._remembered(key)
            self._entries[key] = entry
            if entry.used_at == now:
                return
        elif entry.idle_place is not None:
            self._leave_idle(entry, entry.idle_place)
        self._worth.hit(entry.kind, now - entry.used_at)
        entry.used_at = now
        if entry.kind < KINDS - 1:
            entry.kind += 1

    def idle(self, key: K) -> None:
        """Nobody uses it any more. One that was never used is as if it were, now."""
        if key not in self._entries:
            self.use(key)
        entry = self._entries[key]
        if entry.idle_place is None:
            entry.idle_place = len(self._idle)
            self._idle.append(entry)

    def victim(self) -> K | None:
        """The next to go, of those that are idle; None where none is. It stays until it is forgotten.

        Others may be looked at when it is asked for again: who needs one answer twice keeps it.
        """
        if not self._idle:
            return None
        if self._uses - self._learned_at >= max(LEAST_PERIOD, len(self._entries)):
            self._learn()
        of, now = self._worth.of, self._uses
        return min(self._some(self._idle, SAMPLE), key=lambda e: (of(e.kind, now - e.used_at), e.used_at)).key

    def forget(self, key: K) -> None:
        """It is gone. One that is not known is none."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        if entry.idle_place is not None:
            self._leave_idle(entry, entry.idle_place)
        self._ghosts[key] = entry
        while len(self._ghosts) > GHOSTS * max(len(self._entries), SAMPLE):
            _, oldest = self._ghosts.popitem(last=False)
            self._worth.ended(oldest.kind, self._uses - oldest.used_at)
            _without(self._all, oldest.place).place = oldest.place

    @property
    def remembered(self) -> int:
        """How many entries that went are remembered."""
        return len(self._ghosts)

    def _remembered(self, key: K) -> _Entry[K]:
        """A new one, used now."""
        entry = _Entry(key, self._uses, len(self._all))
        self._all.append(entry)
        return entry

    def _leave_idle(self, entry: _Entry[K], place: int) -> None:
        _without(self._idle, place).idle_place = place
        entry.idle_place = None

    def _learn(self) -> None:
        """From a part of all that wait for a use: those that are here, and those that went."""
        self._learned_at = now = self._uses
        part = self._some(self._all, POPULATION)
        waiting = [(entry.kind, now - entry.used_at) for entry in part]
        self._worth.learn(waiting, weight=len(self._all) / len(part), doubt=len(self._entries))

    def _some(self, entries: list[_Entry[K]], most: int) -> list[_Entry[K]]:
        """All of them, or so many drawn by chance, one twice perhaps."""
        if len(entries) <= most:
            return entries
        chance, size = self._chance.random, len(entries)
        return [entries[int(chance() * size)] for _ in range(most)]


def _without(entries: list[_Entry[K]], place: int) -> _Entry[K]:
    """Take the one at `place` out; returns the last one, which takes its place."""
    last = entries.pop()
    if place < len(entries):
        entries[place] = last
    return last
