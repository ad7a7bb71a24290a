"""Prefixes that nobody uses, by tenant, and which of them goes next.

What of a tenant's goes next is decided by its own `index.retention`, which knows prefixes by their content, so that one
that was evicted and is computed again is no stranger to it. A prefix goes before what it builds on: where the next to
go has others built on it, all of them idle, the oldest of these goes first.

Among tenants that no quota names it is the one whose next to go is idle for longest (`services.tenant_line`). An
eviction costs the same with a hundred prefixes and a hundred thousand, and a step for each that lies between the one
chosen and its oldest leaf: counted in `tests/services/test_retained.py`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from itertools import count

from kvcluster.index.retention import Retention
from kvcluster.memory.shared_prefix import SharedPrefix
from kvcluster.services.tenant_line import TenantLine

MOST_EMPTY = 256  # tenants without a prefix whose history is remembered


class RetainedPrefixes:
    """Of one device. Tenants that a quota names stand in no line: whether anything of theirs may go varies."""

    def __init__(self, named: Container[str] = ()) -> None:
        self._named = named
        self._shelves: dict[str, _Shelf] = {}
        self._empty: dict[str, None] = {}  # tenants whose shelf has no prefix, the longest first
        self._line = TenantLine()
        self._ticks = count()

    def used(self, prefix: SharedPrefix) -> None:
        """Somebody begins to use it: it is not idle."""
        self._shelf(prefix.tenant).use(prefix)

    def idle(self, prefix: SharedPrefix) -> None:
        """Nobody uses it any more. One that builds on another comes before that."""
        shelf = self._shelf(prefix.tenant)
        shelf.idle(prefix, next(self._ticks))
        if prefix.tenant not in self._named:
            self._line.join(prefix.tenant, shelf.idle_since(prefix))

    def gone(self, prefix: SharedPrefix) -> None:
        """It is no more. One that was never used nor idle is not known here."""
        shelf = self._shelves.get(prefix.tenant)
        if shelf is not None and shelf.remove(prefix):
            self._empty[prefix.tenant] = None
            if len(self._empty) > MOST_EMPTY:
                oldest = next(iter(self._empty))
                del self._empty[oldest], self._shelves[oldest]

    def next_of(self, tenant: str) -> SharedPrefix | None:
        """The next of this tenant's to go; nothing is built on it."""
        shelf = self._shelves.get(tenant)
        return shelf.next() if shelf is not None else None

    def next_unnamed(self) -> SharedPrefix | None:
        """The next to go of tenants that no quota names."""
        tenant = self._line.first(self._idle_since)
        return None if tenant is None else self.next_of(tenant)

    def next_among(self, tenants: Iterable[str]) -> SharedPrefix | None:
        """The next to go of these tenants; looks at each."""
        candidates = [prefix for tenant in tenants if (prefix := self.next_of(tenant)) is not None]
        return min(candidates, key=lambda p: self._shelves[p.tenant].idle_since(p), default=None)

    @property
    def remembered(self) -> int:
        """Of how many tenants something is known."""
        return len(self._shelves)

    def _idle_since(self, tenant: str) -> int | None:
        prefix = self.next_of(tenant)
        return None if prefix is None else self._shelves[tenant].idle_since(prefix)

    def _shelf(self, tenant: str) -> _Shelf:
        self._empty.pop(tenant, None)
        shelf = self._shelves.get(tenant)
        if shelf is None:
            shelf = self._shelves[tenant] = _Shelf()
        return shelf


class _Shelf:
    """One tenant's: those that were ever used or idle, until they are gone."""

    def __init__(self) -> None:
        self._retention: Retention[bytes] = Retention()
        self._by_key: dict[bytes, SharedPrefix] = {}
        self._keys: dict[SharedPrefix, bytes] = {}
        self._since: dict[SharedPrefix, int] = {}  # idle ones
        self._next: SharedPrefix | None = (
            None  # what was last said, until something changes: asked again, it may differ
        )

    def use(self, prefix: SharedPrefix) -> None:
        self._next = None
        self._retention.use(self._key(prefix))
        self._since.pop(prefix, None)

    def idle(self, prefix: SharedPrefix, tick: int) -> None:
        if prefix not in self._keys:  # it was used by the request that leaves it
            self.use(prefix)
        self._next = None
        self._retention.idle(self._key(prefix))
        self._since[prefix] = tick

    def idle_since(self, prefix: SharedPrefix) -> int:
        return self._since[prefix]

    def remove(self, prefix: SharedPrefix) -> bool:
        """Whether it was the last one."""
        key = self._keys.pop(prefix, None)
        if key is None:
            return False
        self._next = None
        self._since.pop(prefix, None)
        del self._by_key[key]
        self._retention.forget(key)
        return not self._keys

    def next(self) -> SharedPrefix | None:
        if self._next is None and (key := self._retention.victim()) is not None:
            leaf = self._by_key[key]
            while leaf.children:
                leaf = next(iter(leaf.children))
            self._next = leaf
        return self._next

    def _key(self, prefix: SharedPrefix) -> bytes:
        """Its content, or its number where another one has that too, or it has none."""
        key = self._keys.get(prefix)
        if key is None:
            is_known = prefix.content and prefix.content not in self._by_key
            key = prefix.content if is_known else prefix.number.to_bytes(8, "big")
            self._keys[prefix], self._by_key[key] = key, prefix
        return key
