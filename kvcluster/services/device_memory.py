"""The memory of one device, as verbs of its clients: open, release, close, and a client's end.

A verb plans first (every rule is checked before anything changes), then does what can fail, noting each undo, and
leaves to `Work.after` what cannot be undone: handles go back to the pool, or are destroyed, only when the whole
group is kept. Called under the device service's lock; knows nothing of sessions' connections, frames or replies.

Grants and commits have their own room (`services.spending`), so has sharing (`services.sharing`), and so has what
happens to bytes (`services.books`). The invariants that hold between two groups are checked in `services.audit`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvcluster.budget.ledger import FREE
from kvcluster.driver.protocol import Driver
from kvcluster.failpoints import Failpoint, reach
from kvcluster.ids import HandleId, RequestId, WindowRun
from kvcluster.memory.handle import Handle, bytes_of
from kvcluster.memory.reservation import Reservation
from kvcluster.memory.shared_prefix import SharedPrefix
from kvcluster.services.books import Books
from kvcluster.services.device_settings import MemorySettings
from kvcluster.services.finding import Finder
from kvcluster.services.foreign import Foreign
from kvcluster.services.keeping import Keeping
from kvcluster.services.listing import end_claim
from kvcluster.services.open_requests import OpenRequests
from kvcluster.services.opening import Opening, most_bytes_of
from kvcluster.services.pressure import Pressure
from kvcluster.services.queue import Queue
from kvcluster.services.registering import Registering
from kvcluster.services.retaining import RetainedPrefix, Retaining
from kvcluster.services.sharing import Sharing
from kvcluster.services.spending import Spending
from kvcluster.services.told import ToldIds, continued
from kvcluster.services.work import Work

__all__ = ["DeviceMemory", "MemorySettings", "Opening"]


class DeviceMemory:
    """The memory of one device. For one thread at a time."""

    def __init__(
        self, driver: Driver, settings: MemorySettings, *, clock: Callable[[], float], first_arrival: int = 1
    ) -> None:
        self.books = Books(driver, settings, clock=clock)
        self.queue = Queue(self.books.ledger, settings.quotas, first_arrival=first_arrival)
        self.foreign = Foreign(self.books.ledger)
        self.requests = OpenRequests()
        self.registering = Registering(self.books, self.foreign, self.queue, self.requests.find)
        self.spending = Spending(self.books, self.queue, self.requests, self.registering)
        self.sharing = Sharing(self.books, self.queue)
        self.retaining = Retaining(self.books, self.sharing)
        self.told = ToldIds()
        self.finder = Finder(self.books, self.sharing, self.told)
        self.keeping = Keeping(self.books, self.queue, self.told, grace_s=settings.grace_s, clock=clock)

    # --- verbs ----------------------------------------------------------------------------------------------------

    def open(self, request: RequestId, opening: Opening) -> int:
        """Reserve for at most `max_tokens` tokens; returns the arrival number. Costs no bytes.

        The number is that of `after`, where that request has ended and nobody came after it yet; else a new one.

        Raises:
            NeverFits: so many tokens are more than the capacity, or the tenant's quota. Nothing changed.
            NotAllowed: the request is open already. Nothing changed.
            LimitReached: the session has `MOST_OPEN` requests open. Nothing changed.
        """
        self.requests.check_new(request)
        range_map = opening.range_map(self.books.granule_bytes)
        self.spending.check_fits(most_bytes_of(range_map), opening.tenant)
        arrival = self.queue.arrive(opening.tenant, opening.after)
        terms = opening.terms(range_map, arrival, largest_bytes=self.books.settings.largest_bytes)
        reservation = Reservation(request, range_map, terms)
        self.requests.add(reservation)
        return reservation.arrival

    def release(self, request: RequestId, runs: Sequence[WindowRun], work: Work, *, unmapped: bool) -> int:
        """Take windows back; returns their bytes. Those that may still be mapped are quarantined, not reused.

        Foreign ones are nobody's then: see `services.registering`.

        Raises:
            NotAllowed: a window that is not the request's own, one named twice, or a part of a handle. Nothing changed.
            UnknownRequest: nothing changed.
        """
        reservation = self.requests.find(request)
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
    ) -> RetainedPrefix | None:
        """End the request: its grants return, and windows that were not given back are quarantined.

        Where something is to be retained, those that lie wholly inside so many tokens are unmapped: they become a
        prefix that others may join, or are free. Of the prefixes that it left in this group those stay that lie inside.
        Of one that has foreign windows nothing stays. Returns the newest of what stays. `token_ids` follow the
        `told_tokens` that `find` was told: with them all that stays is found by its tokens.

        Raises:
            NotAllowed (another number of ids was told, these are none or too many), UnknownRequest: nothing changed.
        """
        reservation = self.requests.find(request)
        if reservation.is_foreign:
            retain_tokens = 0
        if retain_tokens:
            all_ids = continued(reservation, told_tokens, token_ids, most_tokens=reservation.range_map.max_tokens)
            self.told.complete(reservation, all_ids, work)
        work.retain_tokens, work.is_ended = retain_tokens, True
        self.keeping.released(request)
        planned = self.retaining.plan(reservation, work) if retain_tokens else None
        work.after.append(lambda: self._end(reservation, planned, retain_tokens))
        return self.retaining.retained(planned, work) if retain_tokens else None

    # --- the end of a client --------------------------------------------------------------------------------------

    def collect_expired(self) -> None:
        """Grants whose time is over return; what is kept for successors goes."""
        self.books.governor.collect_expired()
        self.keeping.expire()
        self.registering.settle()

    def orphan(self, session: str) -> None:
        """The session's connection or lease ended: its grants return, its windows are quarantined."""
        reservations = self.requests.of(session)
        self.keeping.orphaned(session, reservations)
        for reservation in reservations:
            self._end(reservation)
        self.queue.forget(session)
        self.books.governor.end(session)
        self.registering.settle()

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
        self.registering.settle()

    def survived(self, session: str, size_bytes: int) -> None:
        """A client of an earlier incarnation lives, and has at most so much mapped: that is charged."""
        self.foreign.survived(session, size_bytes)
        self.books.fit_pool()

    def weigh(self, request: RequestId) -> None:
        """The request may have changed: how much its process may have mapped for it is counted anew."""
        self.requests.weigh(request)

    def mapped_bytes(self, session: str) -> int:
        """The most that the session's process may have mapped."""
        pins = self.books.prefixes.pinned_by(session)
        pinned = sum([prefix.size_bytes for prefix in pins]) if pins else 0
        given_up = self.books.quarantine.held_bytes(session) + pinned + self.foreign.bytes_of(session)
        return self.requests.mapped_bytes(session) + given_up

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

    def waits_for(self, session: str) -> bool:
        """Whether anything waits for the session's process to end."""
        books = self.books
        quarantined = books.quarantine.held_bytes(session) > 0
        pins = bool(books.prefixes.pinned_by(session))
        return quarantined or pins or self.foreign.has_of(session) or self.keeping.waits_for(session)

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
        self.sharing.pin(reservation)
        self.registering.end(reservation)
        reach(Failpoint.DEVICE_ENDING)
        if retained is not None:
            self.retaining.keep(reservation, retained)
            reach(Failpoint.DEVICE_KEPT)
        if retain_tokens:
            limit = reservation.range_map.shape.shared_windows(retain_tokens)
            self.books.reuse(reservation, reservation.detach(reservation.own.held_below(limit)))
        if left := reservation.own.held_runs():
            self.books.isolate(reservation, reservation.detach(left))
        self.finder.ended(reservation)
        self.books.governor.close(reservation.request)
        self.queue.leave(reservation)
        reservation.close()
        self.told.put(reservation, b"")
        self.requests.remove(reservation)
