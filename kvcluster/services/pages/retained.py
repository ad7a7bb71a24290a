"""Blocks that nobody uses and the index knows, by tenant and by content, and which of them goes next.

What of a tenant's goes next is decided by its own `index.retention`; among tenants that no quota names it is the one
whose next to go is idle for longest (`services.tenant_line`). So neither what is evicted nor what it costs depends on
how many tenants there are or were. Of tenants without a block some are remembered: what went and comes again is no
stranger. What builds on what, and who guards what, is its caller's to know.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import count

from kvcluster.index.retention import Retention
from kvcluster.services.tenant_line import TenantLine

MOST_EMPTY = 256  # tenants without a block whose history is remembered


class RetainedBlocks:
    """Of one pool. Tenants that a quota names stand in no line: whether anything of theirs may go varies."""

    def __init__(self, named: Container[str] = ()) -> None:
        self._named = named
        self._of: dict[str, Retention[bytes]] = {}
        self._next: dict[str, bytes] = {}  # what was last said, until something changes: asked again, it may differ
        self._empty: dict[str, None] = {}  # tenants without a block, the longest first
        self._line = TenantLine()
        self._ticks = count()

    @property
    def tenants(self) -> Sequence[str]:
        """Those of whom something is known."""
        return list(self._of)

    def held(self, tenant: str, contents: Sequence[bytes]) -> None:
        """Somebody is about to use these: they are not idle any more, and it is no use yet."""
        self._policy(tenant).hold(*contents)

    def used(self, tenant: str, contents: Sequence[bytes]) -> None:
        """Somebody uses these, from now on or once more."""
        if contents:
            self._policy(tenant).use(*contents)

    def idle(self, tenant: str, contents: Sequence[bytes]) -> None:
        """Nobody uses these any more."""
        if contents:
            tick = next(self._ticks)
            self._policy(tenant).idle(*contents, at=tick)
            if tenant not in self._named:
                self._line.join(tenant, tick)

    def gone(self, tenant: str, content: bytes) -> None:
        """The index knows it no longer."""
        policy = self._policy(tenant)
        policy.forget(content)
        if not policy.entries:
            self._empty[tenant] = None
            if len(self._empty) > MOST_EMPTY:
                oldest = next(iter(self._empty))
                del self._empty[oldest], self._of[oldest]

    def next_of(self, tenant: str) -> bytes | None:
        """The next of this tenant's to go, before which all goes that builds on it."""
        if tenant not in self._next:
            policy = self._of.get(tenant)
            victim = policy.victim() if policy is not None else None
            if victim is None:
                return None
            self._next[tenant] = victim
        return self._next[tenant]

    def first_unnamed(self) -> str | None:
        """Of tenants that no quota names, the one that the next to go is taken from."""
        return self._line.first(self._idle_since)

    def _idle_since(self, tenant: str) -> int | None:
        content = self.next_of(tenant)
        return None if content is None else self._of[tenant].idle_since(content)

    def _policy(self, tenant: str) -> Retention[bytes]:
        """Its, about to change."""
        self._next.pop(tenant, None)
        self._empty.pop(tenant, None)
        policy = self._of.get(tenant)
        if policy is None:
            policy = self._of[tenant] = Retention()
        return policy
