"""What one device has and who has it: the ledger, the handles, the reservations; and each verb as a change of them.

A verb plans first (every rule is checked before anything changes), then does what can fail, noting each undo, and
leaves to `Work.after` what cannot be undone: handles go back to the pool, or are destroyed, only when the whole
group is kept. Called under the device service's lock; knows nothing of sessions' connections, frames or replies.

The invariants that hold between two groups are checked in `services.audit`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from kvcluster.budget.admission import Admission
from kvcluster.budget.governor import Governor, Limits
from kvcluster.budget.ledger import FREE, QUARANTINE, Ledger, account_of
from kvcluster.budget.places import Places
from kvcluster.driver.protocol import Driver
from kvcluster.errors import KvClusterError, LimitReached, NeverFits, NotAllowed, OutOfBudget, UnknownRequest
from kvcluster.failpoints import Failpoint, reach
from kvcluster.geometry.residency import GroupShape, RangeMap, Shape
from kvcluster.ids import GrantId, RequestId, WindowRun
from kvcluster.memory.handle import Handle, HandleState
from kvcluster.memory.pool import HandlePool
from kvcluster.memory.quarantine import Quarantine
from kvcluster.memory.reservation import Reservation
from kvcluster.services.work import Work

GROWTH_TOKENS = 16  # one growth, as an admission leaves room for
MOST_OPEN = 4096  # requests of one session; each costs the device some memory of its own, and a place in the queue


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """Bytes: the device's capacity, its granule, and how much may stay pooled.

    Raises:
        ValueError: the capacity is not a whole number of granules, or none at all.
    """

    capacity_bytes: int
    granule_bytes: int
    pool_bytes: int
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if min(self.capacity_bytes, self.granule_bytes) < 1 or self.capacity_bytes % self.granule_bytes:
            raise ValueError(
                f"a device of {self.capacity_bytes} bytes is no whole number of granules of {self.granule_bytes} "
                f"bytes: give a multiple of the granule, and at least one"
            )


class DeviceMemory:
    """The memory of one device. For one thread at a time."""

    def __init__(self, driver: Driver, settings: MemorySettings, *, clock: Callable[[], float]) -> None:
        granule_bytes = settings.granule_bytes
        self.capacity_bytes = settings.capacity_bytes
        self.granule_bytes = granule_bytes
        self.ledger = Ledger(self.capacity_bytes)
        self.governor = Governor(self.ledger, clock=clock, limits=settings.limits)
        self.pool = HandlePool(driver, handle_bytes=granule_bytes, limit_bytes=settings.pool_bytes)
        self.quarantine = Quarantine()
        self.reservations: dict[RequestId, Reservation] = {}
        self.reserved_bytes = 0  # address space of all open reservations; no memory
        self._open_of: Counter[str] = Counter()
        self._admission = Admission()
        self._places = Places()

    # --- verbs ----------------------------------------------------------------------------------------------------

    def open(
        self, request: RequestId, groups: tuple[GroupShape, ...], max_tokens: int, *, after: RequestId | None = None
    ) -> int:
        """Reserve for at most `max_tokens` tokens; returns the arrival number. Costs no bytes.

        The number is that of `after`, where that request has ended and nobody came after it yet; else a new one.

        Raises:
            NeverFits: so many tokens are more than the capacity. Nothing changed.
            NotAllowed: the request is open already. Nothing changed.
            LimitReached: the session has `MOST_OPEN` requests open. Nothing changed.
        """
        if request in self.reservations:
            raise NotAllowed(reason=f"request {request} is open already")
        if self._open_of[request.session] >= MOST_OPEN:
            raise LimitReached(limit="open requests of a session", need=1, free=0, remedy="close some of them first")
        range_map = RangeMap(Shape(groups, self.granule_bytes), max_tokens)
        self._check_fits(range_map.size_bytes)
        reservation = Reservation(request, range_map, self._arrival(after))
        self.reservations[request] = reservation
        self._open_of[request.session] += 1
        self.reserved_bytes += reservation.reserved_bytes
        return reservation.arrival

    def grant(self, identity: GrantId, size_bytes: int, work: Work) -> None:
        """Hold `size_bytes` for the request.

        Raises:
            OutOfBudget: too little is free; one that holds nothing yet is remembered as waiting. Nothing else changed.
            NeverFits: with what the request holds it is more than the capacity. Nothing changed.
            NotAllowed, UnknownRequest: nothing changed.
        """
        reservation = self._reservation(identity.request)
        self._check_fits(reservation.held_bytes + size_bytes)
        reachable_bytes = self.capacity_bytes - self.quarantine.size_bytes
        headroom_bytes = self._admission.headroom_bytes(reservation.arrival, reachable_bytes=reachable_bytes)
        oldest = self._admission.oldest(reachable_bytes=reachable_bytes)
        try:
            self.governor.ask(identity, size_bytes, headroom_bytes=headroom_bytes, oldest_arrival=oldest)
        except OutOfBudget:
            if not self._admission.is_running(reservation.arrival):
                self._admission.refused(reservation.arrival, size_bytes)
            raise
        work.txn.doing(f"grant {identity.number}", 0, undo=lambda _: self.governor.forget(identity))
        work.after.append(lambda: self._admission.satisfied(reservation.arrival))

    def give_back(self, identity: GrantId) -> None:
        """Return a held grant. Raises GrantRefused where it is not held; nothing changed."""
        self._reservation(identity.request)
        self.governor.give_back(identity)

    def commit(self, identity: GrantId, tokens: int, work: Work) -> tuple[WindowRun, ...]:
        """Windows for the first `tokens` tokens, paid by the grant; returns those that are new, in window order.

        Raises:
            GrantRefused, NotAllowed, UnknownRequest: no driver call was made. Nothing changed.
            DriverError, LimitReached: a create failed and the earlier ones were undone; the grant is held again.
            Quarantined: and an undo failed too: those bytes left the grant and stay charged.
        """
        reservation = self._reservation(identity.request)
        self.governor.check(identity, 0)
        runs = reservation.missing(tokens)
        size_bytes = self.granule_bytes * sum(run.count for run in runs)
        self.governor.check(identity, size_bytes)
        reach(Failpoint.DEVICE_PLANNED)
        handles = self._take(identity, sum(run.count for run in runs))
        work.txn.doing("handles taken", size_bytes, undo=lambda _: self._put_back(identity, handles))
        reach(Failpoint.DEVICE_TAKEN)
        self._charge(reservation, identity, runs, handles, work)
        reach(Failpoint.DEVICE_CHARGED)
        work.handed += handles
        work.after.append(lambda: self._weigh(reservation))
        return runs

    def release(self, request: RequestId, runs: Sequence[WindowRun], work: Work, *, unmapped: bool) -> int:
        """Take windows back; returns their bytes. Those that may still be mapped are quarantined, not reused.

        Raises:
            NotAllowed: a window that the request does not hold, or one named twice. Nothing changed.
            UnknownRequest: nothing changed.
        """
        reservation = self._reservation(request)
        handles = reservation.detach(runs)
        work.txn.doing("windows given back", 0, undo=lambda _: reservation.attach(runs, handles))
        work.released += handles
        dispose = self._reuse if unmapped else self._isolate
        work.after.append(lambda: dispose(reservation, handles))
        return len(handles) * self.granule_bytes

    def close(self, request: RequestId, work: Work) -> None:
        """End the request: its grants return, and windows that were not given back are quarantined.

        Raises:
            UnknownRequest: nothing changed.
        """
        reservation = self._reservation(request)
        work.after.append(lambda: self._end(reservation))

    # --- the end of a client --------------------------------------------------------------------------------------

    def orphan(self, session: str) -> None:
        """The session's connection ended: its grants return, its windows are quarantined."""
        for reservation in [r for r in self.reservations.values() if r.request.session == session]:
            self._end(reservation)
        self._places.forget(session)

    def process_gone(self, session: str) -> None:
        """The session's process is dead: what it had is free."""
        handles = self.quarantine.process_gone(session)
        size_bytes = len(handles) * self.granule_bytes
        self.ledger.post(size_bytes, debit=QUARANTINE, credit=FREE)
        self._pool_again(handles)

    def trim(self, limit_bytes: int) -> None:
        """Give pooled memory back to the driver until at most `limit_bytes` are pooled. No grant may be held."""
        self.pool.trim(limit_bytes)
        self._write_off()

    def held_by(self, session: str) -> int:
        """Bytes that wait for the session's process to end."""
        return self.quarantine.held_bytes(session)

    @property
    def committed_bytes(self) -> int:
        """Bytes that requests hold."""
        return self.pool.bytes_in(HandleState.OUT)

    # --- steps of the verbs ---------------------------------------------------------------------------------------

    def _reservation(self, request: RequestId) -> Reservation:
        reservation = self.reservations.get(request)
        if reservation is None:
            raise UnknownRequest(request=str(request))
        return reservation

    def _arrival(self, after: RequestId | None) -> int:
        place = self._places.take(after) if after else None
        if place is None:
            return self._admission.arrive()
        self._admission.come_back(place)
        return place

    def _check_fits(self, size_bytes: int) -> None:
        capacity_bytes = self.capacity_bytes - self.quarantine.lost_bytes  # what is lost never comes back
        if size_bytes > capacity_bytes:
            raise NeverFits(need=size_bytes, capacity=capacity_bytes)

    def _take(self, identity: GrantId, count: int) -> list[Handle]:
        try:
            return self.pool.take(count)
        except KvClusterError:
            self._forfeit_lost(identity)
            raise

    def _put_back(self, identity: GrantId, handles: list[Handle]) -> None:
        self.pool.give_back(handles)
        self._forfeit_lost(identity)

    def _forfeit_lost(self, identity: GrantId) -> None:
        lost_bytes = self.pool.drain_lost()
        self.governor.forfeit(identity, lost_bytes, account=QUARANTINE)
        self.quarantine.lose(lost_bytes)

    def _charge(
        self,
        reservation: Reservation,
        identity: GrantId,
        runs: tuple[WindowRun, ...],
        handles: list[Handle],
        work: Work,
    ) -> None:
        account, size_bytes = account_of(reservation.request), len(handles) * self.granule_bytes
        self.governor.spend(identity, size_bytes, account=account)
        work.txn.doing("bytes charged", 0, undo=lambda _: self.governor.unspend(identity, size_bytes, account=account))
        reservation.attach(runs, handles)
        work.txn.doing("windows given", 0, undo=lambda _: _forget(reservation.detach(runs)))

    def _weigh(self, reservation: Reservation) -> None:
        """Tell the admission whether the request runs, and what one growth of it takes."""
        if reservation.held_bytes:
            self._admission.satisfied(reservation.arrival)
            self._admission.runs(reservation.arrival, reservation.growth_bytes(GROWTH_TOKENS))
        else:
            self._admission.stopped(reservation.arrival)

    def _reuse(self, reservation: Reservation, handles: list[Handle]) -> None:
        size_bytes = len(handles) * self.granule_bytes
        self.ledger.post(size_bytes, debit=account_of(reservation.request), credit=FREE)
        self._weigh(reservation)
        reach(Failpoint.DEVICE_RELEASED)
        self._pool_again(handles)

    def _isolate(self, reservation: Reservation, handles: Sequence[Handle]) -> None:
        size_bytes = len(handles) * self.granule_bytes
        self.ledger.post(size_bytes, debit=account_of(reservation.request), credit=QUARANTINE)
        self.pool.quarantine(handles)
        self.quarantine.add(reservation.request.session, handles)
        reservation.quarantine()
        self._weigh(reservation)

    def _pool_again(self, handles: list[Handle]) -> None:
        self.governor.freed(len(handles) * self.granule_bytes)
        self.pool.give_back(handles)
        self._write_off()

    def _write_off(self) -> None:
        """Charge what the pool could not release."""
        lost_bytes = self.pool.drain_lost()
        self.ledger.post(lost_bytes, debit=FREE, credit=QUARANTINE)
        self.quarantine.lose(lost_bytes)

    def _end(self, reservation: Reservation) -> None:
        left = reservation.held_runs()
        if left:
            self._isolate(reservation, reservation.detach(left))
        self.governor.close(reservation.request)
        self._admission.leave(reservation.arrival)
        self._places.leave(reservation.request, reservation.arrival)
        reservation.close()
        del self.reservations[reservation.request]
        self._open_of -= Counter([reservation.request.session])  # and drops a session at 0
        self.reserved_bytes -= reservation.reserved_bytes


def _forget(handles: Iterable[Handle]) -> None:
    """An undo returns nothing."""
