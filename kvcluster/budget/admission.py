"""Who goes first: arrival numbers, and what an admission must leave free (wait-die over the device).

Every open request has a device-wide arrival number. A request that holds nothing yet is *admitted* only beside one
growth of every running request and beside what older requests were refused, so a crowd of young ones cannot starve
an old one. A running request's growth needs no such room: refused, its actor preempts younger requests of its own,
and only the oldest on the device may wait while it holds memory. So the oldest always progresses.

The same holds within a tenant's quota. What a tenant's requests claim of the device is at most what its quota leaves:
beyond it they are served by what the tenant itself gives back. A waiter that wants more than what can come free (the
capacity without what others may keep, or its quota; without the quarantine) has no claim on anybody: it cannot be
served before a process dies, which nobody can hurry.

Arithmetic only: what a refusal leads to is decided by the request actors (`services.request`).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from dataclasses import dataclass

from kvcluster.budget.eviction import Guard
from kvcluster.budget.ledger import Account, Ledger
from kvcluster.budget.quotas import Quotas


@dataclass(frozen=True, slots=True)
class Headroom:
    """What must stay free beside a grant: on the device, and of the tenant's quota."""

    device_bytes: int = 0
    tenant_bytes: int = 0


class Admission:
    """The open requests of one device, by arrival."""

    def __init__(self, ledger: Ledger, quotas: Quotas, *, first: int = 1) -> None:
        self._ledger = ledger
        self._first = first
        self._quotas = quotas
        self._guard = Guard(ledger, quotas)
        self._last = first - 1
        self._by_age: list[int] = []
        self._tenants: dict[int, str] = {}
        self._growth: dict[int, int] = {}
        self._growth_of: Counter[str] = Counter()
        self._refused: dict[int, int] = {}

    def arrive(self, tenant: str = "") -> int:
        """The next arrival number; its request is open from now on."""
        self._last += 1
        self.come_back(self._last, tenant)
        return self._last

    def come_back(self, arrival: int, tenant: str = "") -> None:
        """A request that left is here again, in its old place."""
        insort(self._by_age, arrival)
        self._tenants[arrival] = tenant

    def is_vacant(self, arrival: int) -> bool:
        """Whether it is an earlier number than any that was given here, and nobody has it."""
        return arrival < self._first and arrival not in self._tenants

    def is_open(self, arrival: int) -> bool:
        """Whether an open request has it."""
        return arrival in self._tenants

    def leave(self, arrival: int) -> None:
        """The request is closed."""
        place = bisect_left(self._by_age, arrival)
        if self._by_age[place : place + 1] == [arrival]:
            del self._by_age[place]
        self.stopped(arrival)
        self.satisfied(arrival)
        self._tenants.pop(arrival, None)

    def oldest(self) -> int | None:
        """The lowest arrival number among open requests that run, or may yet get what they wait for."""
        return next((arrival for arrival in self._by_age if self._is_within_reach(arrival)), None)

    def runs(self, arrival: int, growth_bytes: int) -> None:
        """The request holds memory, or shares some; one growth of it takes `growth_bytes`."""
        self.stopped(arrival)
        self._growth[arrival] = growth_bytes
        self._growth_of[self._tenants[arrival]] += growth_bytes

    def stopped(self, arrival: int) -> None:
        """The request holds and shares no memory any more."""
        if arrival in self._growth:
            tenant = self._tenants[arrival]
            self._growth_of[tenant] -= self._growth.pop(arrival)
            if not self._growth_of[tenant]:
                del self._growth_of[tenant]

    @property
    def running(self) -> int:
        """How many requests hold memory or share some."""
        return len(self._growth)

    def is_running(self, arrival: int) -> bool:
        return arrival in self._growth

    def refused(self, arrival: int, size_bytes: int) -> None:
        """The request, not running, was refused `size_bytes` and will ask again."""
        self._refused[arrival] = size_bytes

    def satisfied(self, arrival: int) -> None:
        """The request no longer waits for memory."""
        self._refused.pop(arrival, None)

    def headroom(self, arrival: int) -> Headroom:
        """What must stay free beside a grant to this request: nothing for one that runs, or alone on the device."""
        if self.is_running(arrival):
            return Headroom()
        claims = Counter(self._growth_of)
        for other, wish_bytes in self._refused.items():
            if other < arrival and self._is_within_reach(other):
                claims[self._tenants[other]] += wish_bytes
        on_device = sum(min(claim, self._left_of(tenant, claim)) for tenant, claim in claims.items())
        return Headroom(on_device, claims[self._tenants[arrival]])

    def _is_within_reach(self, arrival: int) -> bool:
        """Whether what it was refused can come free without a process's end."""
        wish_bytes = self._refused.get(arrival, 0)
        return not wish_bytes or wish_bytes <= self._quotas.most_bytes(
            self._tenants[arrival],
            self._ledger.capacity_bytes,
            gone_bytes=self._ledger.total("quarantine"),
            gone_of=lambda tenant: self._ledger.balance(Account.quarantine(tenant)),
        )

    def _left_of(self, tenant: str, claim_bytes: int) -> int:
        """Of a claim, what the tenant's quota leaves; retained bytes that are its alone lower what it needs as much."""
        quota = self._quotas.of(tenant)
        if quota is None:
            return claim_bytes
        return max(0, quota - self._ledger.used_by(tenant) + self._guard.unguarded_bytes(tenant))
