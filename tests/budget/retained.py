"""Retained prefixes, as far as a governor sees them: pieces that go whole, the oldest first; some that will not go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from kvcluster.budget.eviction import Evictable, Guard
from kvcluster.budget.ledger import FREE, Account, Ledger
from kvcluster.budget.quotas import Quotas


class Retained:
    """Pieces by number; for another tenant those of tenants that no quota names go first."""

    def __init__(self, ledger: Ledger, quotas: Quotas) -> None:
        self._ledger = ledger
        self._quotas = quotas
        self._guard = Guard(ledger, quotas)
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
        return self._guard.evictable_bytes(tenant)

    def evict(self, tenant: str, *, own_bytes: int, others_bytes: int) -> None:
        could = self.evictable_bytes(tenant)
        assert own_bytes <= could.own_bytes
        assert others_bytes <= could.others_bytes
        before = len(self.evicted)
        own = self._evict(own_bytes, lambda owner: owner == tenant)
        others = self._evict(others_bytes, lambda owner: owner not in self._quotas.by_tenant)
        others += self._evict(others_bytes - others, lambda owner: owner in self._guard.named())
        assert own >= own_bytes  # what could be evicted can be
        assert others >= others_bytes
        assert len(self.evicted) > before or own_bytes == others_bytes == 0

    def _evict(self, size_bytes: int, may_go: Callable[[str], bool]) -> int:
        """Evict pieces of these tenants until so much is gone; how much it was."""
        gone_bytes = 0
        while gone_bytes < size_bytes:
            number = next((n for n, (owner, _) in self.pieces.items() if may_go(owner)), None)
            if number is None:
                break
            gone_bytes += self._goes(number)
        return gone_bytes

    def _goes(self, number: int) -> int:
        tenant, size_bytes = self.pieces.pop(number)
        credit = Account.quarantine(tenant) if self.stuck else FREE
        self.stuck_bytes[tenant] += size_bytes if self.stuck else 0
        self._ledger.post(size_bytes, debit=Account.retained(number, tenant), credit=credit)
        self.evicted.append(number)
        return size_bytes
