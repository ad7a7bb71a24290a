"""The open requests of one owner of memory in order of arrival: who waits, who runs, and who is asked to make room.

Puts together what `budget` decides (admission, and places that are taken over) with the pleas to other clients
(`services.pressure`). Knows reservations and no frames; decides nothing about bytes.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvcluster.budget.admission import Admission, Headroom
from kvcluster.budget.ledger import Ledger
from kvcluster.budget.places import Places
from kvcluster.budget.quotas import Quotas
from kvcluster.errors import OutOfBudget
from kvcluster.ids import RequestId
from kvcluster.services.pressure import Holder, Pressure

GROWTH_TOKENS = 16  # one growth, as an admission leaves room for


class Queue:
    """Of one device, or of host pages."""

    def __init__(self, ledger: Ledger, quotas: Quotas, *, first_arrival: int = 1) -> None:
        self.pressure = Pressure()
        self._ledger = ledger
        self._quotas = quotas
        self._admission = Admission(ledger, quotas, first=first_arrival)
        self._places = Places()

    def arrive(self, tenant: str, after: RequestId | None) -> int:
        """The arrival number of a new request: that of `after`, if it has ended and nobody took its place yet."""
        place = self._places.take(after) if after else None
        if place is None:
            return self._admission.arrive(tenant)
        self._admission.come_back(place, tenant)
        return place

    def return_to(self, arrival: int, reservation: Holder) -> int:
        """The open request was here in an earlier incarnation, under `arrival`: its number from now on, which is that
        one, unless somebody has it."""
        if not self._admission.is_vacant(arrival):
            return reservation.arrival
        self._admission.leave(reservation.arrival)
        self._admission.come_back(arrival, reservation.tenant)
        return arrival

    def succeed(self, arrival: int, reservation: Holder) -> int:
        """The open request goes on with the work of one that had `arrival` when its process died: its number from now
        on, which is that one, unless somebody has it."""
        if self._admission.is_open(arrival):
            return reservation.arrival
        self._admission.leave(reservation.arrival)
        self._admission.come_back(arrival, reservation.tenant)
        return arrival

    @property
    def running(self) -> int:
        """How many requests hold memory or share some."""
        return self._admission.running

    def headroom(self, reservation: Holder) -> Headroom:
        """What must stay free beside a grant to this request."""
        return self._admission.headroom(reservation.arrival)

    def oldest(self) -> int | None:
        """The arrival number of the oldest request that can be served."""
        return self._admission.oldest()

    def refused(self, reservation: Holder, refusal: OutOfBudget, others: Iterable[Holder]) -> None:
        """The request was refused a grant: it waits, or its growth does; younger ones elsewhere are asked for room."""
        is_running = self._admission.is_running(reservation.arrival)
        if not is_running:
            self._admission.refused(reservation.arrival, refusal.need)
        if is_running or refusal.oldest_arrival == reservation.arrival:
            helpers = self._helpers(reservation, refusal.need, others)
            self.pressure.refused(reservation, refusal.need - refusal.free, helpers)

    def served(self, reservation: Holder) -> None:
        """The request has what it asked for."""
        self._admission.satisfied(reservation.arrival)
        self.pressure.served(reservation.arrival)

    def weigh(self, reservation: Holder) -> None:
        """What it holds or shares has changed: whether it runs, and what one growth of it takes."""
        if reservation.held_bytes or reservation.shares:
            self._admission.satisfied(reservation.arrival)
            self._admission.runs(reservation.arrival, reservation.growth_bytes(GROWTH_TOKENS))
        else:
            self._admission.stopped(reservation.arrival)

    def leave(self, reservation: Holder) -> None:
        """The request is over; another one may take its place."""
        self._admission.leave(reservation.arrival)
        self._places.leave(reservation.request, reservation.arrival)
        self.pressure.served(reservation.arrival)
        self.pressure.eased(reservation.request.session)

    def forget(self, session: str) -> None:
        """The session is over."""
        self._places.forget(session)
        self.pressure.eased(session)

    def _helpers(self, reservation: Holder, need_bytes: int, others: Iterable[Holder]) -> Iterable[Holder]:
        """Whose memory would help the request: where its own quota is in the way, its tenant's alone."""
        quota = self._quotas.of(reservation.tenant)
        is_quota = quota is not None and self._ledger.used_by(reservation.tenant) + need_bytes > quota
        return (other for other in others if not is_quota or other.tenant == reservation.tenant)
