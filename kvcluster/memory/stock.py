"""The pooled handles: each kind newest first, all of them oldest first. No driver here.

A kind is what decides who may have a handle as it is: its size, whose bytes may be in it, and whether another process
ever had it. Kinds are few and handles many, so a handle costs one entry, and the oldest is looked for among the kinds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from itertools import chain, groupby, islice
from operator import attrgetter, itemgetter
from typing import NamedTuple

from kvcluster.ids import HandleId
from kvcluster.memory.handle import Handle

Row = dict[Handle, int]  # in the order in which they came, which the number tells
NO_ROW: Row = {}


class Kind(NamedTuple):
    size_bytes: int
    tenant: str | None
    was_handed_over: bool


_KIND = attrgetter(*Kind._fields)  # of a handle, as a tuple


class Stock:
    """Handles between two uses. What a handle is found by does not change while it is here."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._rows: dict[Kind, Row] = {}
        self._came = 0

    def add(self, handles: Iterable[Handle]) -> None:
        """The newest now, the last of them the very newest."""
        for values, group in groupby(handles, _KIND):
            kind = Kind(*values)
            row = self._rows.setdefault(kind, {})
            before = len(row)
            for handle in group:
                self._came += 1
                row[handle] = self._came
            self.size_bytes += (len(row) - before) * kind.size_bytes

    def take(self, size_bytes: int, tenant: str, count: int, known: AbstractSet[HandleId]) -> list[Handle]:
        """At most `count` that the tenant may have as they are: known ones, its own others, nobody's; newest first."""
        own = Kind(size_bytes, tenant, True), Kind(size_bytes, tenant, False)
        taken = self._take_known(own, count, known) if known else []
        for kind in (*own, Kind(size_bytes, None, False)):
            row = self._rows.get(kind, NO_ROW)
            newest = [row.popitem()[0] for _ in range(min(count - len(taken), len(row)))]
            self._left(kind, len(newest))
            taken += newest
        return taken

    def remove(self, handle: Handle) -> None:
        """One that is here."""
        kind = Kind(*_KIND(handle))
        del self._rows[kind][handle]
        self._left(kind, 1)

    def private_of_others(self, size_bytes: int, tenant: str) -> Handle | None:
        """One of another tenant's that no other process ever had, the newest of its kind."""
        for kind, row in self._rows.items():
            if kind.size_bytes == size_bytes and kind.tenant not in (None, tenant) and not kind.was_handed_over:
                return next(reversed(row))
        return None

    def oldest(self) -> Handle | None:
        """The one that came first."""
        firsts = (next(iter(row.items())) for row in self._rows.values())
        return min(firsts, key=itemgetter(1), default=(None, 0))[0]

    def __iter__(self) -> Iterator[Handle]:
        return chain.from_iterable(self._rows.values())

    def _take_known(self, kinds: Iterable[Kind], count: int, known: AbstractSet[HandleId]) -> list[Handle]:
        rows = [self._rows.get(kind, NO_ROW) for kind in kinds]
        found = list(islice((handle for row in rows for handle in reversed(row) if handle.identity in known), count))
        for handle in found:
            self.remove(handle)
        return found

    def _left(self, kind: Kind, count: int) -> None:
        """So many of this kind were taken out."""
        self.size_bytes -= count * kind.size_bytes
        if not self._rows.get(kind, True):
            del self._rows[kind]
