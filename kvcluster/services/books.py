"""Whose bytes are whose on one device: ledger, grants, handles, quarantine and prefixes; and each way that bytes go.

A way is one posting and one move of handles, in the order that keeps every invariant: bytes are free before their
handles are pooled, and what the driver would not release is written off at once. Nothing here can fail: a driver
call that does becomes a charge. What a verb means, and its undo, is in `device_memory` and `sharing`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile

from kvcluster.budget.eviction import Evictable, Guard
from kvcluster.budget.governor import Governor
from kvcluster.budget.ledger import FREE, RETAINED, Account, Ledger, account_of
from kvcluster.driver.protocol import Driver
from kvcluster.failpoints import Failpoint, reach
from kvcluster.ids import GrantId, RequestId
from kvcluster.index.prefix_index import PrefixIndex
from kvcluster.memory.handle import Handle, bytes_by_tenant, bytes_of
from kvcluster.memory.pool import HandlePool
from kvcluster.memory.quarantine import Quarantine
from kvcluster.memory.remnant import Remnant
from kvcluster.memory.reservation import Reservation
from kvcluster.memory.shared_prefix import PrefixState, SharedPrefix, SharedPrefixes
from kvcluster.services.device_settings import MemorySettings
from kvcluster.services.retained import RetainedPrefixes
from kvcluster.units import ceil_div


class Books:
    """One device's. Also the governor's evictor: what is retained goes when somebody needs its memory."""

    def __init__(self, driver: Driver, settings: MemorySettings, *, clock: Callable[[], float]) -> None:
        self.settings = settings
        self.driver = driver
        self.granule_bytes = settings.granule_bytes
        self.ledger = Ledger(settings.capacity_bytes)
        self.governor = Governor(self.ledger, clock=clock, limits=settings.limits, quotas=settings.quotas, evictor=self)
        self.pool = HandlePool(
            driver,
            granule_bytes=settings.granule_bytes,
            bulk_bytes=settings.largest_bytes,
            capacity_bytes=settings.capacity_bytes,
            limit_bytes=settings.pool_bytes,
        )
        self.quarantine = Quarantine()
        self.prefixes = SharedPrefixes()
        self.index = PrefixIndex()
        self.retained = RetainedPrefixes(settings.quotas.by_tenant)
        self.kept: dict[Remnant, None] = {}  # for successors, the oldest first
        self.guard = Guard(self.ledger, settings.quotas)
        self.evictions = 0

    def most_bytes(self, tenant: str) -> int:
        """The most that the tenant can ever have; what is lost never comes back."""
        quotas = self.settings.quotas
        if not quotas.by_tenant and quotas.default_bytes is None:  # asked for with each grant
            return max(0, self.ledger.capacity_bytes - self.quarantine.lost_bytes)
        return quotas.most_bytes(
            tenant,
            self.ledger.capacity_bytes,
            gone_bytes=self.quarantine.lost_bytes,
            gone_of=self.quarantine.lost_by,
        )

    # --- handles of requests --------------------------------------------------------------------------------------

    def reuse(self, reservation: Reservation, handles: Sequence[Handle]) -> None:
        """Nobody maps them, and the request has them no longer."""
        self.ledger.post(bytes_of(handles), debit=request_account(reservation), credit=FREE)
        self.pool_again(handles)

    def isolate(self, reservation: Reservation, handles: Sequence[Handle]) -> None:
        """They may still be mapped: charged, and not reused before the request's process is gone."""
        quarantine = Account.quarantine(reservation.tenant)
        self.ledger.post(bytes_of(handles), debit=request_account(reservation), credit=quarantine)
        self.pool.quarantine(handles)
        self.quarantine.add(reservation.request.session, handles)

    def process_gone(self, session: str) -> None:
        """What was isolated because of this process is free."""
        handles = self.quarantine.process_gone(session)
        for tenant, size_bytes in bytes_by_tenant(handles).items():
            self.ledger.post(size_bytes, debit=Account.quarantine(tenant), credit=FREE)
        self.pool_again(handles)
        turned = self.prefixes.process_gone(session)
        self.booked(turned)
        for prefix in turned:
            self.drain_finished(prefix)

    def pool_again(self, handles: Sequence[Handle]) -> None:
        """Their bytes are free by now."""
        self.governor.freed(bytes_of(handles))
        self.pool.give_back(handles)
        self.write_off()

    def write_off(self, *, out_of: GrantId | None = None) -> None:
        """Charge what the driver would not release; out of a grant, where one was to be spent on it."""
        if lost := self.pool.drain_lost():
            self.governor.lose(lost, out_of=out_of)
            self.quarantine.lose(lost)

    # --- memory of earlier incarnations -----------------------------------------------------------------------------

    def freed_foreign(self, size_bytes: int) -> None:
        """So much of it is free by now."""
        self.governor.freed(size_bytes)
        self.fit_pool()

    def fit_pool(self) -> None:
        """What is foreign is in the hardware too: as much less may be created here."""
        self.pool.resize(self.ledger.capacity_bytes - self.ledger.total("foreign"))
        self.write_off()

    # --- what is kept for successors: retained, but for its prefixes, which it uses ---------------------------------

    def keep(self, remnant: Remnant) -> None:
        """Its process is dead, and what was isolated of it is not free."""
        self.quarantine.take_out(remnant.request.session, remnant.handles)
        self.ledger.post(remnant.size_bytes, debit=Account.quarantine(remnant.tenant), credit=kept_account(remnant))
        self.pool.keep(remnant.handles)
        for use in remnant.uses:
            self.use(use.prefix, remnant.request)
        self.kept[remnant] = None

    def hand_over(self, remnant: Remnant, reservation: Reservation) -> None:
        """An empty reservation has it from now on."""
        self.ledger.post(remnant.size_bytes, debit=kept_account(remnant), credit=request_account(reservation))
        for use in remnant.uses:
            self.use(use.prefix, reservation.request)
            reservation.use(use.prefix, use.windows)
        reservation.attach(remnant.runs, remnant.handles)
        self._part_kept(remnant)

    def drop(self, remnant: Remnant) -> None:
        """Nobody goes on with it: its windows are free."""
        self.ledger.post(remnant.size_bytes, debit=kept_account(remnant), credit=FREE)
        self._part_kept(remnant)
        self.pool_again(remnant.handles)

    def _part_kept(self, remnant: Remnant) -> None:
        del self.kept[remnant]
        for use in reversed(remnant.uses):
            self.booked(self.prefixes.part(use.prefix, remnant.request))
            self.drain_finished(use.prefix)

    # --- prefixes -------------------------------------------------------------------------------------------------

    def hand_to_prefix(self, reservation: Reservation, prefix: SharedPrefix) -> None:
        """The windows of `prefix` are no longer the request's own: it holds and pays them."""
        handles = reservation.detach(prefix.runs)
        prefix.take(handles)
        prefix.owner = None
        self.ledger.post(prefix.size_bytes, debit=request_account(reservation), credit=prefix_account(prefix))

    def use(self, prefix: SharedPrefix, request: RequestId) -> None:
        """`request` uses it from now on, and with it those that it builds on."""
        links = list(takewhile(lambda link: request not in link.users, prefix.chain()))
        turned = self.prefixes.use(prefix, request)
        self.booked(turned)
        for link in links[len(turned) :]:  # in use before
            self.retained.used(link)

    def booked(self, turned: Iterable[SharedPrefix]) -> None:
        """These have become idle, or are used again."""
        for prefix in turned:
            idle, used = Account.retained(prefix.number, prefix.tenant), Account.prefix(prefix.number, prefix.tenant)
            if prefix.is_idle:
                self.ledger.post(prefix.size_bytes, debit=used, credit=idle)
                self.retained.idle(prefix)
            else:
                self.ledger.post(prefix.size_bytes, debit=idle, credit=used)
                self.retained.used(prefix)

    def drain_finished(self, prefix: SharedPrefix | None) -> None:
        """Drain it, and those that it builds on, as far as nobody uses them and nobody wants them kept."""
        while prefix is not None and prefix.is_idle and not prefix.children and not prefix.is_kept:
            if prefix.state is PrefixState.DRAINED:
                return
            self._drain(prefix)
            prefix = prefix.parent

    def strike(self, prefix: SharedPrefix) -> None:
        """It is no more: nobody finds it, and it is on nobody's list. Its bytes and handles are its caller's."""
        self.index.remove(prefix.number)
        self.retained.gone(prefix)
        self.booked(self.prefixes.remove(prefix))

    def _drain(self, prefix: SharedPrefix) -> None:
        size_bytes = prefix.size_bytes
        self.ledger.post(size_bytes, debit=prefix_account(prefix), credit=FREE)
        was_sealed = prefix.state is PrefixState.SEALED
        self.strike(prefix)
        if was_sealed:
            self.governor.freed(size_bytes)
            self.pool.destroy(prefix.handles)
            self.write_off()
        else:
            self.pool_again(prefix.handles)

    # --- budget.governor.Evictor ----------------------------------------------------------------------------------

    def evictable_bytes(self, tenant: str) -> Evictable:
        """What can be freed at once for this tenant: idle prefixes, as far as they are not guarded for others."""
        return self.guard.evictable_bytes(tenant)

    def evict(self, tenant: str, *, own_bytes: int, others_bytes: int) -> None:
        """Free at least so much of each; children before parents, and what is guarded for others never.

        Of others', what no quota names goes before what a quota was given for. What is kept for successors goes after
        the prefixes of the same: to compute it again holds up somebody, and a prefix perhaps nobody.
        """
        self._evict(own_bytes, lambda: self.retained.next_of(tenant) or self._next_kept(tenant.__eq__))
        others_bytes -= self._evict(others_bytes, self.retained.next_unnamed)
        others_bytes -= self._evict(others_bytes, self._next_unguarded)
        self._evict(others_bytes, lambda: self._next_of_others() or self._next_kept(self._may_go))

    def evict_all(self) -> None:
        """Every prefix that nobody uses goes."""
        self._evict_for_hardware(self.ledger.capacity_bytes)

    def _evict_for_hardware(self, size_bytes: int) -> None:
        """Free at least so much, or all that nobody uses; what is guarded goes last."""
        for next_leaf in (self.retained.next_unnamed, self._next_unguarded, self._next_named):
            size_bytes -= self._evict(size_bytes, next_leaf)
        self._evict(size_bytes, lambda: self._next_of_others() or self._next_named() or self._next_kept(lambda _: True))

    def _next_unguarded(self) -> SharedPrefix | None:
        return self.retained.next_among(self.guard.named())

    def _next_named(self) -> SharedPrefix | None:
        return self.retained.next_among(self.settings.quotas.by_tenant)

    def _next_of_others(self) -> SharedPrefix | None:
        return self.retained.next_unnamed() or self._next_unguarded()

    def _may_go(self, tenant: str) -> bool:
        return tenant not in self.settings.quotas.by_tenant or self.guard.unguarded_bytes(tenant) > 0

    def _next_kept(self, of: Callable[[str], bool]) -> Remnant | None:
        """The oldest that is kept for one of these tenants."""
        return next((remnant for remnant in self.kept if of(remnant.tenant)), None)

    def _evict(self, size_bytes: int, next_one: Callable[[], SharedPrefix | Remnant | None]) -> int:
        """Free at least so much of those that go next, or all of them; returns how much it was."""
        before = self.ledger.total(RETAINED)
        while (gone := before - self.ledger.total(RETAINED)) < size_bytes and (going := next_one()) is not None:
            reach(Failpoint.DEVICE_EVICTING)
            self.evictions += 1
            if isinstance(going, Remnant):
                self.drop(going)
                continue
            going.is_kept = False
            self.drain_finished(going)
        return gone

    # --- size -----------------------------------------------------------------------------------------------------

    def measure(self, utilization: float) -> int:
        """Fit the capacity to what the hardware has now, at most the configured one; returns it.

        Whole granules, and never below what is claimed: what nobody uses is evicted first.
        """
        seen = self.driver.memory_info()
        there_bytes = seen.free_bytes + seen.held_bytes + self.ledger.total("foreign")
        wanted = int(min(self.settings.capacity_bytes, utilization * there_bytes))
        self.governor.collect_expired()
        self._evict_for_hardware(self.ledger.claimed_bytes - wanted)
        self._resize(max(self._claimed_bytes(), wanted - wanted % self.granule_bytes))
        return self.ledger.capacity_bytes

    def _resize(self, capacity_bytes: int) -> None:
        if capacity_bytes > self.ledger.capacity_bytes:
            self.ledger.resize(capacity_bytes)
        self.pool.resize(capacity_bytes - self.ledger.total("foreign"))
        self.write_off()  # what the pool could not release is claimed from now on
        if capacity_bytes < self.ledger.capacity_bytes:
            self.ledger.resize(max(capacity_bytes, self._claimed_bytes()))
        self.fit_pool()  # which is larger, where a handle could not be released

    def _claimed_bytes(self) -> int:
        """In whole granules."""
        return ceil_div(self.ledger.claimed_bytes, self.granule_bytes) * self.granule_bytes


def request_account(reservation: Reservation) -> Account:
    """The account that pays what the request holds."""
    return account_of(reservation.request, reservation.tenant)


def kept_account(remnant: Remnant) -> Account:
    """The account that pays what is kept for a successor."""
    return Account.kept(remnant.request, remnant.tenant)


def prefix_account(prefix: SharedPrefix) -> Account:
    """The account that pays the prefix now."""
    account = Account.retained if prefix.is_idle else Account.prefix
    return account(prefix.number, prefix.tenant)
