"""What clients have mapped since an earlier incarnation of their device: taken into its books, request by request.

A request that was opened again gets back its place in the queue and the windows that its client has: they are there,
and foreign. It grows with windows of this incarnation; those that it gives back are freed for everybody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvcluster.errors import NotAllowed
from kvcluster.failpoints import Failpoint, reach
from kvcluster.geometry.residency import Keeps, RangeMap
from kvcluster.ids import RequestId, WindowRun
from kvcluster.memory.reservation import OldUse, Reservation, ReservationState
from kvcluster.services.books import Books
from kvcluster.services.foreign import Foreign
from kvcluster.services.queue import Queue
from kvcluster.services.work import Work

OldPrefix = tuple[int, int, tuple[WindowRun, ...]]  # the epoch that made it, its number then, and its windows here


@dataclass(frozen=True, slots=True)
class Registration:
    """One request's: its arrival number, windows of its own, and prefixes that it uses, newest last."""

    arrival: int
    runs: tuple[WindowRun, ...]
    prefixes: tuple[OldPrefix, ...] = ()


class Registering:
    """Of one device. `find` gives an open request, or raises UnknownRequest."""

    def __init__(self, books: Books, foreign: Foreign, queue: Queue, find: Callable[[RequestId], Reservation]) -> None:
        self._books = books
        self._foreign = foreign
        self._queue = queue
        self._find = find

    def register(self, request: RequestId, registration: Registration) -> int:
        """The open request, which holds nothing here, has this mapped; returns its arrival number.

        Raises:
            UnknownRequest; NotAllowed: it holds something, or names windows that it cannot have, or twice. Nothing
                changed.
        """
        reservation = self._find(request)
        if reservation.state is not ReservationState.RESERVED:
            raise NotAllowed(reason=f"request {request} registers before it holds or uses anything")
        uses = _old_uses(reservation.range_map, registration.prefixes)
        _check_inside(reservation, registration.runs, uses)
        reservation.hold_foreign(registration.runs)
        reservation.use_old(uses)
        self._foreign.hold(request.session, reservation.tenant, reservation.foreign_bytes)
        for use in uses:
            self._foreign.use(use.key, request, reservation.tenant, self._bytes_of(use.runs))
        reservation.arrival = self._queue.return_to(registration.arrival, reservation)
        self._books.fit_pool()
        self._queue.weigh(reservation)
        reach(Failpoint.DEVICE_REGISTERED)
        return reservation.arrival

    def complete(self, session: str, kept_bytes: int) -> None:
        """It has said all that it has, and what it could not unmap of requests that are over: no more is charged."""
        self._foreign.kept(session, kept_bytes)
        self._foreign.registered(session)
        self._books.fit_pool()

    def settle(self) -> None:
        """What is free pays first what is owed for memory of earlier incarnations."""
        if self._foreign.owes:
            self._foreign.settle()
            self._books.fit_pool()

    def release(self, reservation: Reservation, runs: Sequence[WindowRun], work: Work, *, unmapped: bool) -> int:
        """Foreign windows are given back; returns their bytes. Those that may still be mapped stay charged."""
        reservation.drop_foreign(runs)
        work.txn.doing("foreign windows given back", 0, undo=lambda _: reservation.hold_foreign(runs))
        size_bytes = self._bytes_of(runs)
        work.after.append(lambda: self._released(reservation, size_bytes, unmapped=unmapped))
        return size_bytes

    def leave(self, reservation: Reservation, number: int, work: Work, *, unmapped: bool) -> bool:
        """Its newest old prefix is used no longer; whether `number` is that."""
        if not reservation.old_uses or reservation.old_uses[-1].number != number:
            return False
        before = reservation.old_uses
        reservation.use_old(before[:-1])
        work.txn.doing("old prefix left", 0, undo=lambda _: reservation.use_old(before))
        work.after.append(lambda: self._left(reservation, before[-1], unmapped=unmapped))
        return True

    def end(self, reservation: Reservation) -> None:
        """The request is over. What it did not give back stays charged until its process is gone."""
        self._foreign.strand(reservation.request.session, reservation.tenant, reservation.foreign_bytes)
        reservation.drop_foreign(reservation.foreign.runs())
        for use in reservation.old_uses:
            self._foreign.leave_unclean(use.key, reservation.request)
        reservation.use_old(())

    def _released(self, reservation: Reservation, size_bytes: int, *, unmapped: bool) -> None:
        session, tenant = reservation.request.session, reservation.tenant
        if unmapped:
            self._foreign.let_go(session, tenant, size_bytes)
            self._books.freed_foreign(size_bytes)
            self._queue.pressure.eased(session)
        else:
            self._foreign.strand(session, tenant, size_bytes)
            reservation.quarantine()
        self._queue.weigh(reservation)

    def _left(self, reservation: Reservation, use: OldUse, *, unmapped: bool) -> None:
        if unmapped:
            before = self._foreign.size_bytes
            self._foreign.leave(use.key, reservation.request)
            self._books.freed_foreign(max(0, before - self._foreign.size_bytes))
        else:
            self._foreign.leave_unclean(use.key, reservation.request)
            reservation.quarantine()
        self._queue.weigh(reservation)

    def _bytes_of(self, runs: Sequence[WindowRun]) -> int:
        return self._books.granule_bytes * sum(run.count for run in runs)


def _old_uses(range_map: RangeMap, prefixes: Sequence[OldPrefix]) -> tuple[OldUse, ...]:
    ends = [0] * len(range_map.shape.groups)
    uses = []
    for epoch, number, runs in prefixes:
        for run in runs:
            if run.group < len(ends):
                ends[run.group] = max(ends[run.group], run.start + run.count)
        uses.append(OldUse(epoch, number, runs, tuple(ends)))
    return tuple(uses)


def _check_inside(reservation: Reservation, own: Sequence[WindowRun], uses: Sequence[OldUse]) -> None:
    """Raises NotAllowed: a window that the request cannot have, or twice; or one of its own below a prefix's end."""
    shape = reservation.range_map.shape
    limits = shape.with_snapshots(shape.windows(reservation.range_map.max_tokens))
    ends = uses[-1].windows if uses else (0,) * len(limits)
    for run in (*own, *(run for use in uses for run in use.runs)):
        inside = run.group < len(limits) and run.fragment < shape.groups[run.group].fragments
        if not inside or run.start + run.count > limits[run.group]:
            raise NotAllowed(reason=f"request {reservation.request} has no window of {run}")
    read = [run for use in uses for run in use.runs]
    named = {(run.group, run.fragment, number) for run in read for number in range(run.start, run.start + run.count)}
    if len(named) != sum(run.count for run in read) or len({use.key for use in uses}) != len(uses):
        raise NotAllowed(reason=f"request {reservation.request} names a prefix, or a window of one, twice")
    for run in own:
        if run.start < ends[run.group] and shape.groups[run.group].keeps is not Keeps.SNAPSHOT:
            raise NotAllowed(reason=f"{run} of request {reservation.request} lies in a prefix that it uses")
