"""Who may have bytes: grants. No grant, no commit.

A grant moves bytes from free to granted for a short while (5 s by default), so that two clients that saw the same
free bytes cannot both take them. It is spent whole: what the commit does not need goes back to free. Expired grants
are collected whenever the governor is asked anything; there is no timer.

No grant carries a tenant past its quota. Where too little is free, retained prefixes are evicted, the tenant's own
first, and only if the grant can be given then: a refusal evicts nothing. What a tenant retains and nobody else may have
is its own to use again, whatever other tenants wait for: they could not have it.

The governor refuses by value (`OutOfBudget`) and estimates when to ask again from the rate at which bytes really
came back. Who is admitted before whom is decided in `budget.admission`.
Source: "Virtual Memory for KV Cache", case one, step 4.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kvcluster.budget.admission import Headroom
from kvcluster.budget.eviction import Evictable, Evictor, NothingRetained
from kvcluster.budget.grants import Grants, GrantState, HeldGrant
from kvcluster.budget.ledger import FREE, Account, Ledger
from kvcluster.budget.quotas import Quotas
from kvcluster.budget.release_rate import ReleaseRate
from kvcluster.budget.room import Room
from kvcluster.errors import GrantRefused, InvariantBroken, OutOfBudget
from kvcluster.ids import GrantId, RequestId

NO_HEADROOM = Headroom()


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds: how long a grant is held, and the least and most that a refused client is told to wait.

    `busy_retry_s` is the most while somebody has, or is about to get, bytes that may come back at any moment: nobody
    tells a waiter when they do. (With nothing but the quarantine in the way it is `most_retry_s`.)
    """

    grant_s: float = 5.0
    least_retry_s: float = 0.1
    most_retry_s: float = 30.0
    busy_retry_s: float = 2.0


class Governor:
    """The grants of one device, over its ledger. `clock` gives seconds and never goes back."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        clock: Callable[[], float],
        limits: Limits,
        quotas: Quotas | None = None,
        evictor: Evictor | None = None,
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._limits = limits
        self._quotas = quotas or Quotas()
        self._evictor = evictor or NothingRetained()
        self._grants = Grants()
        self._expiries: list[tuple[float, GrantId]] = []
        self._release_rate = ReleaseRate(clock)

    def ask(
        self,
        identity: GrantId,
        size_bytes: int,
        *,
        tenant: str = "",
        headroom: Headroom = NO_HEADROOM,
        oldest_arrival: int | None,
    ) -> None:
        """Hold `size_bytes` for `identity`, provided that `headroom` stays free beside it. Nothing can always be had.

        Raises:
            OutOfBudget: too little is free, or could be evicted, or the quota leaves too little. Nothing changed; but
                where a driver call failed in the middle of an eviction, what was evicted is gone.
            NotAllowed: the session used this grant's number before. Nothing changed.
        """
        self.collect_expired()
        self._grants.check_new(identity)
        if size_bytes and not self._make_room(size_bytes, tenant, headroom):
            raise self.refusal(size_bytes, tenant=tenant, headroom=headroom, oldest_arrival=oldest_arrival)
        grant = HeldGrant(identity, tenant, size_bytes, self._clock() + self._limits.grant_s)
        self._ledger.post(size_bytes, debit=FREE, credit=Account.granted(tenant))
        self._grants.add(grant)
        self._watch(grant)

    def refusal(
        self, size_bytes: int, *, tenant: str = "", headroom: Headroom = NO_HEADROOM, oldest_arrival: int | None
    ) -> OutOfBudget:
        """The refusal of `size_bytes`, with what the tenant could have at once and when to ask again."""
        evictable = self._evictor.evictable_bytes(tenant)
        free = max(0, self._room(tenant, headroom).at_most(evictable))
        wait_s = max(self._release_rate.seconds_until(size_bytes - free), self._limits.least_retry_s)
        return OutOfBudget(
            need=size_bytes,
            free=free,
            oldest_arrival=oldest_arrival,
            retry_after_s=min(wait_s, self._most_retry_s(headroom, evictable)),
            quarantined=self._ledger.total("quarantine"),
            capacity=self._ledger.capacity_bytes,
        )

    @property
    def grant_s(self) -> float:
        return self._limits.grant_s

    def check(self, identity: GrantId, size_bytes: int) -> None:
        """The grant is this request's, held, and enough for `size_bytes`.

        Raises:
            GrantRefused: missing (never asked for, or ended so long ago that nobody remembers), foreign, spent,
                expired, returned or too-small. Nothing changed.
        """
        self.collect_expired()
        grant = self._grants.find(identity)
        if grant is None:
            raise GrantRefused(reason="missing")
        if grant.identity != identity:
            raise GrantRefused(reason="foreign")
        if grant.state is not GrantState.HELD:
            raise GrantRefused(reason=grant.state.value)
        if grant.size_bytes < size_bytes:
            raise GrantRefused(reason="too-small", need=size_bytes, granted=grant.size_bytes)

    def spend(self, identity: GrantId, size_bytes: int, *, account: Account) -> None:
        """Pay `size_bytes` into the tenant's `account`; the rest goes back to free. `check` came before."""
        grant = self._known(identity)
        granted = Account.granted(grant.tenant)
        self._grants.end(grant, GrantState.SPENT)
        self._ledger.post(size_bytes, debit=granted, credit=account)
        self._ledger.post(grant.size_bytes - size_bytes, debit=granted, credit=FREE)

    def unspend(self, identity: GrantId, size_bytes: int, *, account: Account) -> None:
        """Undo `spend` before anybody else had a turn: the grant is held again, whole.

        One that so many others followed that it is not remembered stays spent; its bytes are free.
        """
        grant = self._grants.find(identity)
        if grant is None:
            self._ledger.post(size_bytes, debit=account, credit=FREE)
            return
        granted = Account.granted(grant.tenant)
        self._ledger.post(grant.size_bytes - size_bytes, debit=FREE, credit=granted)
        self._ledger.post(size_bytes, debit=account, credit=granted)
        self._grants.hold_again(grant)
        self._watch(grant)

    def lose(self, lost: Mapping[str, int], *, out_of: GrantId | None = None) -> None:
        """Charge bytes, by tenant, that the driver would not take back, to those tenants' quarantine.

        Out of the grant that is named, if it is held; then out of free; then out of held grants, newest first, which
        are too small afterwards for what they were asked for. A loss is the one thing that may carry a tenant past
        its quota.

        Raises:
            InvariantBroken: more than is free and granted.
        """
        named = self._grants.find(out_of) if out_of else None
        for tenant, size_bytes in lost.items():
            credit = Account.quarantine(tenant)
            left = size_bytes - self._take_from([named] if named else [], size_bytes, credit)
            from_free = min(left, self._ledger.balance(FREE))
            self._ledger.post(from_free, debit=FREE, credit=credit)
            left -= from_free
            left -= self._take_from(list(self._grants.held()) if left else [], left, credit)
            if left:
                raise InvariantBroken(sentence=f"{left} of {size_bytes} lost bytes were neither free nor granted")

    def give_back(self, identity: GrantId) -> None:
        """Return a held grant.

        Raises:
            GrantRefused: it is not held, or not this request's. Nothing changed.
        """
        self.check(identity, 0)
        self._end(self._known(identity), GrantState.RETURNED)

    def forget(self, identity: GrantId) -> None:
        """Undo `ask`: as if the grant had never been asked for. It is held, or its time is over by now."""
        grant = self._grants.find(identity)
        if grant and grant.state is GrantState.HELD:
            self._end(grant, GrantState.RETURNED)
        self._grants.forget(identity)

    def close(self, request: RequestId) -> None:
        """Return what the request still holds."""
        for grant in self._grants.held_by(request):
            self._end(grant, GrantState.RETURNED)

    def end(self, session: str) -> None:
        """The session is over, its requests were closed: forget the numbers that it used."""
        self._grants.forget_session(session)

    def freed(self, size_bytes: int) -> None:
        """Note that so many bytes became free: what `retry_after_s` is estimated from."""
        self._release_rate.note(size_bytes)

    def collect_expired(self) -> None:
        """Expire every held grant whose time is over."""
        now = self._clock()
        while self._expiries and self._expiries[0][0] <= now:
            _, identity = heapq.heappop(self._expiries)
            grant = self._grants.find(identity)
            if grant and grant.state is GrantState.HELD and grant.expires_at <= now:  # not a later one of this number
                self._end(grant, GrantState.EXPIRED)

    def held_bytes(self, tenant: str | None = None) -> int:
        """The held grants, one by one, of a tenant or (None) of all: what the ledger's `granted` must equal."""
        return sum(grant.size_bytes for grant in self._grants.held() if tenant in (None, grant.tenant))

    @property
    def remembered(self) -> int:
        """Entries in the tables of grants: bounded, however long a session lives."""
        return self._grants.remembered

    def _make_room(self, size_bytes: int, tenant: str, headroom: Headroom) -> bool:
        """Whether a grant of `size_bytes` can be given now; evicts what it takes, if it is enough."""
        room = self._room(tenant, headroom)
        if size_bytes <= room.at_most(Evictable()):
            return True
        evictable = self._evictor.evictable_bytes(tenant)
        if size_bytes > room.at_most(evictable):
            return False
        going, free_bytes = room.to_evict(size_bytes, evictable), self._ledger.balance(FREE)
        self._evictor.evict(tenant, own_bytes=going.own_bytes, others_bytes=going.others_bytes)
        freed_bytes = self._ledger.balance(FREE) - free_bytes  # less than was asked for where a driver call failed
        return freed_bytes >= going.own_bytes + going.others_bytes and (
            size_bytes <= self._room(tenant, headroom).quota_bytes
        )

    def _room(self, tenant: str, headroom: Headroom) -> Room:
        quota = self._quotas.of(tenant)
        left = self._ledger.capacity_bytes if quota is None else quota - self._ledger.used_by(tenant)
        return Room(
            free_bytes=self._ledger.balance(FREE),
            quota_bytes=left if quota is None else left - headroom.tenant_bytes,
            headroom=headroom,
        )

    def _most_retry_s(self, headroom: Headroom, evictable: Evictable) -> float:
        """What others keep for themselves is as busy as what they use: nobody learns which of the two it is."""
        at_once = self._ledger.balance(FREE) + evictable.own_bytes + evictable.others_bytes
        idle_bytes = at_once + self._ledger.total("quarantine")
        is_busy = headroom.device_bytes > 0 or idle_bytes < self._ledger.capacity_bytes
        return min(self._limits.most_retry_s, self._limits.busy_retry_s) if is_busy else self._limits.most_retry_s

    def _take_from(self, grants: list[HeldGrant], size_bytes: int, credit: Account) -> int:
        """Move at most `size_bytes` out of held grants, in this order; returns how much it was."""
        taken = 0
        for grant in grants:
            if grant.state is GrantState.HELD:
                piece = min(grant.size_bytes, size_bytes - taken)
                self._ledger.post(piece, debit=Account.granted(grant.tenant), credit=credit)
                grant.size_bytes -= piece
                taken += piece
        return taken

    def _known(self, identity: GrantId) -> HeldGrant:
        grant = self._grants.find(identity)
        if grant is None:
            raise InvariantBroken(sentence=f"grant {identity.number} of {identity.request} was not checked before")
        return grant

    def _watch(self, grant: HeldGrant) -> None:
        """Have it collected when its time is over."""
        heapq.heappush(self._expiries, (grant.expires_at, grant.identity))

    def _end(self, grant: HeldGrant, state: GrantState) -> None:
        self._grants.end(grant, state)
        self._ledger.post(grant.size_bytes, debit=Account.granted(grant.tenant), credit=FREE)
