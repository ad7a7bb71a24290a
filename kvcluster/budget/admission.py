"""Who goes first: arrival numbers, and what an admission must leave free (wait-die over the device).

Every open request has a device-wide arrival number. A request that holds nothing yet is *admitted* only beside one
growth of every running request and beside what older requests were refused, so a crowd of young ones cannot starve
an old one. A running request's growth needs no such room: refused, its actor preempts younger requests of its own,
and only the oldest on the device may wait while it holds memory. So the oldest always progresses.

A waiter that wants more than what can come free (`reachable_bytes`: the capacity without the quarantine) has no claim
on anybody: it cannot be served before a process dies, which nobody can hurry.

Arithmetic only: what a refusal leads to is decided by the request actors (`services.request`).
"""

from __future__ import annotations

from bisect import bisect_left, insort


class Admission:
    """The open requests of one device, by arrival."""

    def __init__(self) -> None:
        self._last = 0
        self._by_age: list[int] = []
        self._growth: dict[int, int] = {}
        self._growth_bytes = 0
        self._refused: dict[int, int] = {}

    def arrive(self) -> int:
        """The next arrival number; its request is open from now on."""
        self._last += 1
        self._by_age.append(self._last)
        return self._last

    def come_back(self, arrival: int) -> None:
        """A request that left is here again, in its old place."""
        insort(self._by_age, arrival)

    def leave(self, arrival: int) -> None:
        """The request is closed."""
        place = bisect_left(self._by_age, arrival)
        if self._by_age[place : place + 1] == [arrival]:
            del self._by_age[place]
        self.stopped(arrival)
        self.satisfied(arrival)

    def oldest(self, *, reachable_bytes: int) -> int | None:
        """The lowest arrival number among open requests that run, or may yet get what they wait for."""
        return next((arrival for arrival in self._by_age if self._refused.get(arrival, 0) <= reachable_bytes), None)

    def runs(self, arrival: int, growth_bytes: int) -> None:
        """The request holds memory; one growth of it takes `growth_bytes`."""
        self.stopped(arrival)
        self._growth[arrival] = growth_bytes
        self._growth_bytes += growth_bytes

    def stopped(self, arrival: int) -> None:
        """The request holds no memory any more."""
        self._growth_bytes -= self._growth.pop(arrival, 0)

    def is_running(self, arrival: int) -> bool:
        return arrival in self._growth

    def refused(self, arrival: int, size_bytes: int) -> None:
        """The request, not running, was refused `size_bytes` and will ask again."""
        self._refused[arrival] = size_bytes

    def satisfied(self, arrival: int) -> None:
        """The request no longer waits for memory."""
        self._refused.pop(arrival, None)

    def headroom_bytes(self, arrival: int, *, reachable_bytes: int) -> int:
        """What must stay free beside a grant to this request: 0 for one that runs, or alone on the device."""
        if self.is_running(arrival):
            return 0
        older = (wish for other, wish in self._refused.items() if other < arrival and wish <= reachable_bytes)
        return self._growth_bytes + sum(older)
