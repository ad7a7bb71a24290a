"""What can be freed at once for whom, and whose goes first: between the governor and the retained prefixes.

The governor says how many bytes it is short of. A tenant's own retained prefixes go first, then those of tenants that
no quota names, last those of the others, as far as they are not guarded (`budget.quotas`). Which prefix of a tenant
goes is decided where prefixes are known. A refusal evicts nothing: the governor asks what could be had first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from kvcluster.budget.ledger import RETAINED, Ledger
from kvcluster.budget.quotas import Quotas


@dataclass(frozen=True, slots=True)
class Evictable:
    """Bytes that can be freed at once for one tenant: of its own, which also frees its quota, and of others'.

    Of its own, `guarded_bytes` go for nobody else: they are its own to use, whoever waits for the rest of the device.
    """

    own_bytes: int = 0
    others_bytes: int = 0
    guarded_bytes: int = 0


class Evictor(Protocol):
    def evictable_bytes(self, tenant: str) -> Evictable:
        """What `evict` could free for the tenant now."""

    def evict(self, tenant: str, *, own_bytes: int, others_bytes: int) -> None:
        """Free at least so much of each, of what `evictable_bytes` said. Never raises.

        What a failing driver call keeps from being free was charged to the quarantine (`Governor.lose`).
        """


class NothingRetained:
    """The evictor of a device that retains nothing."""

    def evictable_bytes(self, tenant: str) -> Evictable:
        return Evictable()

    def evict(self, tenant: str, *, own_bytes: int, others_bytes: int) -> None:
        """There is nothing to free."""


class Guard:
    """Which retained bytes of a ledger may go for whom."""

    def __init__(self, ledger: Ledger, quotas: Quotas) -> None:
        self._ledger = ledger
        self._quotas = quotas

    def evictable_bytes(self, tenant: str) -> Evictable:
        """All of its own, and of every other tenant what is not guarded. Costs a look at each named quota."""
        own_bytes = self._ledger.retained_by(tenant)
        guarded = self._quotas.guarded(self._ledger.capacity_bytes)
        kept = sum(self._guarded_bytes(other) for other in guarded if other != tenant)
        return Evictable(own_bytes, self._ledger.total(RETAINED) - own_bytes - kept, self._guarded_bytes(tenant))

    def named(self) -> Iterator[str]:
        """The tenants with a quota of their own of which something may go for others."""
        return (other for other in self._quotas.by_tenant if self.unguarded_bytes(other))

    def unguarded_bytes(self, tenant: str) -> int:
        """What of the tenant's retained bytes may go for others."""
        return self._ledger.retained_by(tenant) - self._guarded_bytes(tenant)

    def _guarded_bytes(self, tenant: str) -> int:
        """What of the tenant's retained bytes lies below its quota, where that is guarded.

        Only a loss carries a tenant past its quota. A prefix that lies across that line is not guarded as a whole.
        """
        quota = self._quotas.guarded(self._ledger.capacity_bytes).get(tenant, 0)
        beyond = max(0, self._ledger.used_by(tenant) - quota)
        return max(0, self._ledger.retained_by(tenant) - beyond)
