"""Budget and what it buys, as verbs of a device's clients: grant, give back, commit.

A grant holds bytes and makes no driver call; a commit is paid by one. Each plans first (every rule is checked before
anything changes), then does what can fail and notes each undo. What a refusal leads to is in `services.queue`. Called
under the device service's lock.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvcluster.errors import KvClusterError, NeverFits, NotAllowed
from kvcluster.failpoints import Failpoint, reach
from kvcluster.ids import GrantId, WindowRun
from kvcluster.memory.handle import Handle, bytes_of
from kvcluster.memory.reservation import Reservation
from kvcluster.services.books import Books, request_account
from kvcluster.services.granting import Granting
from kvcluster.services.open_requests import OpenRequests, bytes_there
from kvcluster.services.queue import Queue
from kvcluster.services.registering import Registering
from kvcluster.services.work import Work


class Spending:
    """Of one device."""

    def __init__(self, books: Books, queue: Queue, requests: OpenRequests, registering: Registering) -> None:
        self._books = books
        self._queue = queue
        self._granting = Granting(books.governor, queue, requests)
        self._requests = requests
        self._registering = registering

    def check_fits(self, size_bytes: int, tenant: str) -> None:
        """Raises NeverFits: so much is more than the capacity, or the tenant's quota."""
        most_bytes = self._books.most_bytes(tenant)
        if size_bytes > most_bytes:
            raise NeverFits(need=size_bytes, capacity=most_bytes)

    def grant(self, identity: GrantId, size_bytes: int, work: Work, *, tokens: int = 0) -> None:
        """Hold `size_bytes` for the request, or with `tokens` what a commit of so many lacks.

        What is retained goes, as far as that helps.

        Raises:
            OutOfBudget: too little is free; one that holds nothing yet is remembered as waiting, and others are asked
                to give back. Nothing else changed.
            NeverFits: with what the request has it is more than the capacity or the quota. Nothing changed.
            NotAllowed, UnknownRequest: nothing changed.
        """
        reservation = self._requests.find(identity.request)
        if tokens:
            size_bytes = self._books.granule_bytes * sum(run.count for run in reservation.missing(tokens))
        self.check_fits(bytes_there(reservation) + size_bytes, reservation.tenant)
        self._registering.settle()
        self._granting.ask(identity, reservation, size_bytes, work)

    def give_back(self, identity: GrantId) -> None:
        """Return a held grant. Raises GrantRefused where it is not held; nothing changed."""
        self._requests.find(identity.request)
        self._books.governor.give_back(identity)

    def commit(self, identity: GrantId, tokens: int, work: Work, *, snapshot: bool = False) -> tuple[WindowRun, ...]:
        """Windows for the first `tokens` tokens, paid by the grant; returns those that are new, in window order.

        With `snapshot`, also all windows of its snapshots.

        Raises:
            GrantRefused, NotAllowed, UnknownRequest: no driver call was made. Nothing changed.
            DriverError, LimitReached: a create failed and the earlier ones were undone; the grant is held again.
            Quarantined: and an undo failed too: those bytes left the grant and stay charged.
        """
        reservation, governor = self._requests.find(identity.request), self._books.governor
        try:
            runs = reservation.missing(tokens, snapshot=snapshot)
        except NotAllowed:
            governor.check(identity, 0)  # a grant that is no good is what is told
            raise
        size_bytes = self._books.granule_bytes * sum(run.count for run in runs)
        governor.check(identity, size_bytes)  # before anything of a run's length is built
        work.naming(runs)
        reach(Failpoint.DEVICE_PLANNED)
        handles = self._take(reservation, identity, reservation.sizes.cut(runs), work)
        work.txn.doing("handles taken", size_bytes, undo=lambda _: self._put_back(identity, handles))
        reach(Failpoint.DEVICE_TAKEN)
        self._charge(reservation, identity, runs, handles, work)
        reach(Failpoint.DEVICE_CHARGED)
        work.handed += handles
        work.after.append(lambda: self._queue.weigh(reservation))
        return runs

    def _take(self, reservation: Reservation, identity: GrantId, sizes: list[int], work: Work) -> list[Handle]:
        try:
            handles = self._books.pool.take(sizes, tenant=reservation.tenant, known=work.known)
        except KvClusterError:
            self._books.write_off(out_of=identity)
            raise
        self._books.write_off()  # another tenant's, destroyed for room
        return handles

    def _put_back(self, identity: GrantId, handles: list[Handle]) -> None:
        self._books.pool.give_back(handles)
        self._books.write_off(out_of=identity)

    def _charge(
        self,
        reservation: Reservation,
        identity: GrantId,
        runs: tuple[WindowRun, ...],
        handles: list[Handle],
        work: Work,
    ) -> None:
        governor, account, size_bytes = self._books.governor, request_account(reservation), bytes_of(handles)
        governor.check(identity, size_bytes)  # taking may have cost the grant something
        governor.spend(identity, size_bytes, account=account)
        work.txn.doing("bytes charged", 0, undo=lambda _: governor.unspend(identity, size_bytes, account=account))
        reservation.attach(runs, handles)
        work.txn.doing("windows given", 0, undo=lambda _: _forget(reservation.detach(runs)))


def _forget(handles: Iterable[Handle]) -> None:
    """An undo returns nothing."""
