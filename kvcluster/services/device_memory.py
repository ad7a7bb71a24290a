"""The memory of one device, as verbs of its clients: open, grant, commit, release, close, and a client's end.

A verb plans first (every rule is checked before anything changes), then does what can fail, noting each undo, and
leaves to `Work.after` what cannot be undone: handles go back to the pool, or are destroyed, only when the whole
group is kept. Called under the device service's lock; knows nothing of sessions' connections, frames or replies.

Sharing has its own room (`services.sharing`), and so has what happens to bytes (`services.books`). The invariants
that hold between two groups are checked in `services.audit`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from kvcluster.budget.ledger import FREE
from kvcluster.driver.protocol import Driver
from kvcluster.errors import KvClusterError, LimitReached, NeverFits, NotAllowed, OutOfBudget, UnknownRequest
from kvcluster.failpoints import Failpoint, reach
from kvcluster.ids import GrantId, HandleId, RequestId, WindowRun
from kvcluster.memory.handle import Handle, bytes_of
from kvcluster.memory.reservation import Reservation
from kvcluster.memory.shared_prefix import SharedPrefix
from kvcluster.services.books import Books, request_account
from kvcluster.services.device_settings import MemorySettings
from kvcluster.services.finding import Finder
from kvcluster.services.foreign import Foreign
from kvcluster.services.keeping import Keeping
from kvcluster.services.listing import end_claim
from kvcluster.services.opening import Opening, most_bytes_of
from kvcluster.services.pressure import Pressure
from kvcluster.services.queue import Queue
from kvcluster.services.registering import Registering
from kvcluster.services.sharing import Remains, Sharing
from kvcluster.services.told import ToldIds, continued
from kvcluster.services.work import Work

__all__ = ["DeviceMemory", "MemorySettings", "Opening"]

MOST_OPEN = 4096  # requests of one session; each costs the device some memory of its own, and a place in the queue


class DeviceMemory:
    """The memory of one device. For one thread at a time."""

    def __init__(
        self, driver: Driver, settings: MemorySettings, *, clock: Callable[[], float], first_arrival: int = 1
    ) -> None:
        self.books = Books(driver, settings, clock=clock)
        self.queue = Queue(self.books.ledger, settings.quotas, first_arrival=first_arrival)
        self.foreign = Foreign(self.books.ledger)
        self.registering = Registering(self.books, self.foreign, self.queue, self.reservation)
        self.sharing = Sharing(self.books, self.queue)
        self.told = ToldIds()
        self.finder = Finder(self.books, self.sharing, self.told)
        self.keeping = Keeping(self.books, self.queue, self.told, grace_s=settings.grace_s, clock=clock)
        self.reservations: dict[RequestId, Reservation] = {}
        self.reserved_bytes = 0  # address space of all open reservations; no memory
        self._open_of: Counter[str] = Counter()
        self._weights: dict[RequestId, int] = {}
        self._mapped: Counter[str] = Counter()  # bytes that open requests may have mapped, by session

    # --- verbs ----------------------------------------------------------------------------------------------------

    def open(self, request: RequestId, opening: Opening) -> int:
        """Reserve for at most `max_tokens` tokens; returns the arrival number. Costs no bytes.

        The number is that of `after`, where that request has ended and nobody came after it yet; else a new one.

        Raises:
            NeverFits: so many tokens are more than the capacity, or the tenant's quota. Nothing changed.
            NotAllowed: the request is open already. Nothing changed.
            LimitReached: the session has `MOST_OPEN` requests open. Nothing changed.
        """
        if request in self.reservations:
            raise NotAllowed(reason=f"request {request} is open already")
        if self._open_of[request.session] >= MOST_OPEN:
            raise LimitReached(limit="open requests of a session", need=1, free=0, remedy="close some of them first")
        range_map = opening.range_map(self.books.granule_bytes)
        self._check_fits(most_bytes_of(range_map), opening.tenant)
        arrival = self.queue.arrive(opening.tenant, opening.after)
        terms = opening.terms(range_map, arrival, largest_bytes=self.books.settings.largest_bytes)
        reservation = self.reservations[request] = Reservation(request, range_map, terms)
        self._open_of[request.session] += 1
        self.reserved_bytes += reservation.reserved_bytes
        return reservation.arrival

    def grant(self, identity: GrantId, size_bytes: int, work: Work, *, tokens: int = 0) -> None:
        """Hold `size_bytes` for the request, or with `tokens` what a commit of so many lacks.

        What is retained goes, as far as that helps.

        Raises:
            OutOfBudget: too little is free; one that holds nothing yet is remembered as waiting, and others are asked
                to give back. Nothing else changed.
            NeverFits: with what the request has it is more than the capacity or the quota. Nothing changed.
            NotAllowed, UnknownRequest: nothing changed.
        """
        reservation = self.reservation(identity.request)
        if tokens:
            size_bytes = self.books.granule_bytes * sum(run.count for run in reservation.missing(tokens))
        self._check_fits(self._has_bytes(reservation) + size_bytes, reservation.tenant)
        self.settle()
        try:
            self.books.governor.ask(
                identity,
                size_bytes,
                tenant=reservation.tenant,
                headroom=self.queue.headroom(reservation),
                oldest_arrival=self.queue.oldest(),
            )
        except OutOfBudget as refusal:
            self.queue.refused(reservation, refusal, self.reservations.values())
            raise
        work.txn.doing(f"grant {identity.number}", 0, undo=lambda _: self.books.governor.forget(identity))
        work.after.append(lambda: self.queue.served(reservation))

    def give_back(self, identity: GrantId) -> None:
        """Return a held grant. Raises GrantRefused where it is not held; nothing changed."""
        self.reservation(identity.request)
        self.books.governor.give_back(identity)

    def commit(self, identity: GrantId, tokens: int, work: Work, *, snapshot: bool = False) -> tuple[WindowRun, ...]:
        """Windows for the first `tokens` tokens, paid by the grant; returns those that are new, in window order.

        With `snapshot`, also all windows of its snapshots.

        Raises:
            GrantRefused, NotAllowed, UnknownRequest: no driver call was made. Nothing changed.
            DriverError, LimitReached: a create failed and the earlier ones were undone; the grant is held again.
            Quarantined: and an undo failed too: those bytes left the grant and stay charged.
        """
        reservation, governor = self.reservation(identity.request), self.books.governor
        governor.check(identity, 0)
        runs = reservation.missing(tokens, snapshot=snapshot)
        size_bytes = self.books.granule_bytes * sum(run.count for run in runs)
        governor.check(identity, size_bytes)  # before anything of a run's length is built
        work.naming(runs)
        reach(Failpoint.DEVICE_PLANNED)
        handles = self._take(reservation, identity, reservation.sizes.cut(runs), work)
        work.txn.doing("handles taken", size_bytes, undo=lambda _: self._put_back(identity, handles))
        reach(Failpoint.DEVICE_TAKEN)
        self._charge(reservation, identity, runs, handles, work)
        reach(Failpoint.DEVICE_CHARGED)
        work.handed += handles
        work.after.append(lambda: self.queue.weigh(reservation))
        return runs

    def release(self, request: RequestId, runs: Sequence[WindowRun], work: Work, *, unmapped: bool) -> int:
        """Take windows back; returns their bytes. Those that may still be mapped are quarantined, not reused.

        Foreign ones are nobody's then: see `services.registering`.

        Raises:
            NotAllowed: a window that is not the request's own, one named twice, or a part of a handle. Nothing changed.
            UnknownRequest: nothing changed.
        """
        reservation = self.reservation(request)
        foreign, own = reservation.foreign.split(runs)
        handles = reservation.detach(own)
        self.keeping.released(request)
        work.txn.doing("windows given back", 0, undo=lambda _: reservation.attach(own, handles))
        work.released += handles
        work.after.append(lambda: self._released(reservation, handles, unmapped=unmapped))
        foreign_bytes = self.registering.release(reservation, foreign, work, unmapped=unmapped) if foreign else 0
        return bytes_of(handles) + foreign_bytes

    def close(
        self, request: RequestId, work: Work, *, retain_tokens: int = 0, token_ids: bytes = b"", told_tokens: int = 0
    ) -> Remains | None:
        """End the request: its grants return, and windows that were not given back are quarantined.

        Where something is to be retained, those that lie wholly inside so many tokens are unmapped: they become a
        prefix that others may join, or are free. Of the prefixes that it left in this group those stay that lie inside.
        Of one that has foreign windows nothing stays. Returns the newest of what stays. `token_ids` follow the
        `told_tokens` that `find` was told: with them all that stays is found by its tokens.

        Raises:
            NotAllowed (another number of ids was told, these are none or too many), UnknownRequest: nothing changed.
        """
        reservation = self.reservation(request)
        if reservation.is_foreign:
            retain_tokens = 0
        if retain_tokens:
            all_ids = continued(reservation, told_tokens, token_ids, most_tokens=reservation.range_map.max_tokens)
            self.told.complete(reservation, all_ids, work)
        work.retain_tokens, work.is_ended = retain_tokens, True
        self.keeping.released(request)
        planned = self.sharing.retain(reservation, work) if retain_tokens else None
        work.after.append(lambda: self._end(reservation, planned, retain_tokens))
        return self.sharing.remains(planned, work) if retain_tokens else None

    def reservation(self, request: RequestId) -> Reservation:
        """The open request. Raises UnknownRequest."""
        reservation = self.reservations.get(request)
        if reservation is None:
            raise UnknownRequest(request=str(request))
        return reservation

    # --- the end of a client --------------------------------------------------------------------------------------

    def collect_expired(self) -> None:
        """Grants whose time is over return; what is kept for successors goes."""
        self.books.governor.collect_expired()
        self.keeping.expire()
        self.settle()

    def orphan(self, session: str) -> None:
        """The session's connection or lease ended: its grants return, its windows are quarantined."""
        reservations = [r for r in self.reservations.values() if r.request.session == session]
        self.keeping.orphaned(session, reservations)
        for reservation in reservations:
            self._end(reservation)
        self.queue.forget(session)
        self.books.governor.end(session)
        self.settle()

    def surrendered(self, session: str) -> None:
        """Its process lives, and gave everything up by itself: none of it is kept for a successor."""
        self.keeping.surrendered(session)

    def process_gone(self, session: str) -> None:
        """Nothing of the session is mapped anywhere: it uses no prefix, and what it had is free, or its successor's."""
        self.keeping.gone(session)
        self.books.process_gone(session)
        before = self.foreign.size_bytes
        self.foreign.process_gone(session)
        self.books.freed_foreign(max(0, before - self.foreign.size_bytes))
        self.settle()

    def survived(self, session: str, size_bytes: int) -> None:
        """A client of an earlier incarnation lives, and has at most so much mapped: that is charged."""
        self.foreign.survived(session, size_bytes)
        self.books.fit_pool()

    def weigh(self, request: RequestId) -> None:
        """The request may have changed: how much its process may have mapped for it is counted anew."""
        reservation = self.reservations.get(request)
        weight, before = self._has_bytes(reservation) if reservation else 0, self._weights.pop(request, 0)
        if weight:
            self._weights[request] = weight
        self._mapped[request.session] += weight - before
        if not self._mapped[request.session]:
            del self._mapped[request.session]

    def mapped_bytes(self, session: str) -> int:
        """The most that the session's process may have mapped."""
        haunted = sum([prefix.size_bytes for prefix in self.books.prefixes.haunted_by(session)])
        given_up = self.books.quarantine.held_bytes(session) + haunted + self.foreign.bytes_of(session)
        return self._mapped[session] + given_up

    def settle(self) -> None:
        """What is free pays first what is owed for memory of earlier incarnations."""
        if self.foreign.owes:
            self.foreign.settle()
            self.books.fit_pool()

    def trim(self, limit_bytes: int) -> None:
        """Give pooled memory back to the driver until at most `limit_bytes` are pooled."""
        self.books.pool.trim(limit_bytes)
        self.books.write_off()

    def shrink(self) -> bool:
        """Give some of the pooled memory back to the driver; whether there is more."""
        more = self.books.pool.shrink(0)
        self.books.write_off()
        return more

    def fill(self) -> bool:
        """Create a few handles ahead, as far as bytes are free or granted; whether there is more to do.

        Where too many are pooled, some are given back to the driver instead.
        """
        ledger = self.books.ledger
        more = self.books.pool.fill(ledger.balance(FREE) + ledger.total("granted"))
        self.books.write_off()
        return more

    def is_haunted_by(self, session: str) -> bool:
        """Whether anything waits for the session's process to end."""
        books = self.books
        quarantined = books.quarantine.held_bytes(session) > 0
        haunted = bool(books.prefixes.haunted_by(session))
        return quarantined or haunted or self.foreign.has_of(session) or self.keeping.waits_for(session)

    @property
    def pressure(self) -> Pressure:
        """Who is asked to make room."""
        return self.queue.pressure

    def drain_forgotten(self) -> Sequence[HandleId]:
        """Handles that were destroyed, since the last call."""
        return self.books.pool.drain_forgotten()

    @property
    def committed_bytes(self) -> int:
        """Bytes that requests hold, shared ones not counted."""
        return self.books.ledger.total("request")

    # --- steps of the verbs ---------------------------------------------------------------------------------------

    def _check_fits(self, size_bytes: int, tenant: str) -> None:
        most_bytes = self.books.most_bytes(tenant)
        if size_bytes > most_bytes:
            raise NeverFits(need=size_bytes, capacity=most_bytes)

    def _has_bytes(self, reservation: Reservation) -> int:
        """What must be there for it: its own, and what it shares."""
        shape = reservation.range_map.shape
        return reservation.held_bytes + shape.granule_bytes * shape.window_count(reservation.shared)

    def _take(self, reservation: Reservation, identity: GrantId, sizes: list[int], work: Work) -> list[Handle]:
        try:
            handles = self.books.pool.take(sizes, tenant=reservation.tenant, known=work.known)
        except KvClusterError:
            self.books.write_off(out_of=identity)
            raise
        self.books.write_off()  # another tenant's, destroyed for room
        return handles

    def _put_back(self, identity: GrantId, handles: list[Handle]) -> None:
        self.books.pool.give_back(handles)
        self.books.write_off(out_of=identity)

    def _charge(
        self,
        reservation: Reservation,
        identity: GrantId,
        runs: tuple[WindowRun, ...],
        handles: list[Handle],
        work: Work,
    ) -> None:
        governor, account, size_bytes = self.books.governor, request_account(reservation), bytes_of(handles)
        governor.check(identity, size_bytes)  # taking may have cost the grant something
        governor.spend(identity, size_bytes, account=account)
        work.txn.doing("bytes charged", 0, undo=lambda _: governor.unspend(identity, size_bytes, account=account))
        reservation.attach(runs, handles)
        work.txn.doing("windows given", 0, undo=lambda _: _forget(reservation.detach(runs)))

    def _released(self, reservation: Reservation, handles: list[Handle], *, unmapped: bool) -> None:
        if reservation.writing is not None and not reservation.own.holds(reservation.writing.runs):
            self.sharing.give_up(reservation)
        if unmapped:
            reach(Failpoint.DEVICE_RELEASED)
            self.books.reuse(reservation, handles)
            self.queue.pressure.eased(reservation.request.session)
        else:
            self.books.isolate(reservation, handles)
            reservation.quarantine()
        end_claim(self.books, reservation)
        self.queue.weigh(reservation)

    def _end(self, reservation: Reservation, retained: SharedPrefix | None = None, retain_tokens: int = 0) -> None:
        self.sharing.haunt(reservation)
        self.registering.end(reservation)
        reach(Failpoint.DEVICE_ENDING)
        if retained is not None:
            self.sharing.keep(reservation, retained)
            reach(Failpoint.DEVICE_KEPT)
        if retain_tokens:
            limit = reservation.range_map.shape.shared_windows(retain_tokens)
            self.books.reuse(reservation, reservation.detach(reservation.own.held_below(limit)))
        if left := reservation.own.held_runs():
            self.books.isolate(reservation, reservation.detach(left))
        self.finder.ended(reservation)
        self.books.governor.close(reservation.request)
        self.queue.leave(reservation)
        self._strike(reservation)

    def _strike(self, reservation: Reservation) -> None:
        reservation.close()
        self.told.put(reservation, b"")
        del self.reservations[reservation.request]
        self.weigh(reservation.request)
        self._open_of -= Counter([reservation.request.session])  # and drops a session at 0
        self.reserved_bytes -= reservation.reserved_bytes


def _forget(handles: Iterable[Handle]) -> None:
    """An undo returns nothing."""
