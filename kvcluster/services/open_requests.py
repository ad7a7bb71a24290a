"""The open requests of one device: which are open, and how much their processes may have mapped for them.

A request is open from its `open` to its end, whether it holds anything or not. What it weighs is counted anew after
each of its groups, so that what a session may have mapped is known without looking at all of its requests. Costs no
bytes. Called under the device service's lock; `services.pages.open_sequences` is the same for host pages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from kvcluster.errors import LimitReached, NotAllowed, UnknownRequest
from kvcluster.ids import RequestId
from kvcluster.memory.reservation import Reservation

MOST_OPEN = 4096  # requests of one session; each costs the device some memory of its own, and a place in the queue


class OpenRequests:
    """Of one device. `reserved_bytes` is the address space of all, no memory."""

    def __init__(self) -> None:
        self.reserved_bytes = 0
        self._reservations: dict[RequestId, Reservation] = {}
        self._open_of: Counter[str] = Counter()
        self._weights: dict[RequestId, int] = {}
        self._mapped: Counter[str] = Counter()  # bytes, by session

    def __len__(self) -> int:
        return len(self._reservations)

    def __iter__(self) -> Iterator[Reservation]:
        return iter(self._reservations.values())

    def __contains__(self, request: object) -> bool:
        return request in self._reservations

    def find(self, request: RequestId) -> Reservation:
        """The open request. Raises UnknownRequest."""
        reservation = self._reservations.get(request)
        if reservation is None:
            raise UnknownRequest(request=str(request))
        return reservation

    def of(self, session: str) -> list[Reservation]:
        """A session's."""
        return [reservation for reservation in self if reservation.request.session == session]

    def check_new(self, request: RequestId) -> None:
        """It can be opened.

        Raises:
            NotAllowed: it is open already.
            LimitReached: its session has `MOST_OPEN` open.
        """
        if request in self:
            raise NotAllowed(reason=f"request {request} is open already")
        if self._open_of[request.session] >= MOST_OPEN:
            raise LimitReached(limit="open requests of a session", need=1, free=0, remedy="close some of them first")

    def add(self, reservation: Reservation) -> None:
        """It is open from now on."""
        self._reservations[reservation.request] = reservation
        self._open_of[reservation.request.session] += 1
        self.reserved_bytes += reservation.reserved_bytes

    def remove(self, reservation: Reservation) -> None:
        """It is over, and holds nothing."""
        del self._reservations[reservation.request]
        self.weigh(reservation.request)
        self._open_of -= Counter([reservation.request.session])  # and drops a session at 0
        self.reserved_bytes -= reservation.reserved_bytes

    def weigh(self, request: RequestId) -> None:
        """The request may have changed: how much its process may have mapped for it is counted anew."""
        reservation = self._reservations.get(request)
        weight, before = bytes_there(reservation) if reservation else 0, self._weights.pop(request, 0)
        if weight:
            self._weights[request] = weight
        self._mapped[request.session] += weight - before
        if not self._mapped[request.session]:
            del self._mapped[request.session]

    def mapped_bytes(self, session: str) -> int:
        """The most that the session's process may have mapped for requests that are open."""
        return self._mapped[session]


def bytes_there(reservation: Reservation) -> int:
    """What there is for it: its own, and what it shares."""
    if not reservation.shares:
        return reservation.held_bytes
    shape = reservation.range_map.shape
    return reservation.held_bytes + shape.granule_bytes * shape.window_count(reservation.shared)
