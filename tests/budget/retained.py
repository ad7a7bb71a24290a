"""Retained prefixes, as far as a governor sees them: pieces that go whole, the oldest first; some that will not go."""

from __future__ import annotations

from collections import Counter

from kvcluster.budget.eviction import Evictable
from kvcluster.budget.ledger import FREE, Account, Ledger
from kvcluster.budget.quotas import Quotas


class Retained:
    """Pieces by number; for another tenant those of tenants without a quota go first."""

    def __init__(self, ledger: Ledger, quotas: Quotas) -> None:
        self._ledger = ledger
        self._quotas = quotas
        self._number = 0
        self.pieces: dict[int, tuple[str, int]] = {}
        self.evicted: list[int] = []
        self.stuck = False  # the driver releases nothing
        self.stuck_bytes: Counter[str] = Counter()  # evicted in vain, by tenant

    def retain(self, tenant: str, size_bytes: int, debit: Account) -> int:
        """Move bytes from `debit` into a new piece."""
        self._number += 1
        self.pieces[self._number] = tenant, size_bytes
        self._ledger.post(size_bytes, debit=debit, credit=Account.retained(self._number, tenant))
        return self._number

    def evictable_bytes(self, tenant: str) -> Evictable:
        own = sum(size for owner, size in self.pieces.values() if owner == tenant)
        others = sum(size for owner, size in self.pieces.values() if owner != tenant)
        return Evictable(own, others)

    def evict(self, tenant: str, *, own_bytes: int, others_bytes: int) -> None:
        assert own_bytes <= self.evictable_bytes(tenant).own_bytes
        assert others_bytes <= self.evictable_bytes(tenant).others_bytes
        self._evict([number for number, (owner, _) in self.pieces.items() if owner == tenant], own_bytes)
        theirs = [number for number, (owner, _) in self.pieces.items() if owner != tenant]
        self._evict(sorted(theirs, key=self._has_quota), others_bytes)

    def _has_quota(self, number: int) -> bool:
        return self._quotas.of(self.pieces[number][0]) is not None

    def _evict(self, numbers: list[int], size_bytes: int) -> None:
        for number in numbers:
            if size_bytes <= 0:
                return
            tenant, freed = self.pieces.pop(number)
            credit = Account.quarantine(tenant) if self.stuck else FREE
            self.stuck_bytes[tenant] += freed if self.stuck else 0
            self._ledger.post(freed, debit=Account.retained(number, tenant), credit=credit)
            self.evicted.append(number)
            size_bytes -= freed
