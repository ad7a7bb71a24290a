"""Who goes first: arrival numbers, and what an admission must leave free (wait-die over the device).

Every open request has a device-wide arrival number. A request that holds nothing yet is *admitted* only beside one
growth of every running request and beside what older requests were refused, so a crowd of young ones cannot starve
an old one. A running request's growth needs no such room: refused, its actor preempts younger requests of its own,
and only the oldest on the device may wait while it holds memory. So the oldest always progresses.

Arithmetic only: what a refusal leads to is decided by the request actors (`services.request`).
"""

from __future__ import annotations

import heapq


class Admission:
    """The open requests of one device, by arrival."""

    def __init__(self) -> None:
        self._last = 0
        self._open: set[int] = set()
        self._by_age: list[int] = []
        self._growth: dict[int, int] = {}
        self._growth_bytes = 0
        self._refused: dict[int, int] = {}

    def arrive(self) -> int:
        """The next arrival number; its request is open from now on."""
        self._last += 1
        self._open.add(self._last)
        heapq.heappush(self._by_age, self._last)
        return self._last

    def leave(self, arrival: int) -> None:
        """The request is closed."""
        self._open.discard(arrival)
        self.stopped(arrival)
        self.satisfied(arrival)

    def oldest(self) -> int | None:
        """The lowest arrival number among open requests, running or waiting."""
        while self._by_age and self._by_age[0] not in self._open:
            heapq.heappop(self._by_age)
        return self._by_age[0] if self._by_age else None

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

    def headroom_bytes(self, arrival: int) -> int:
        """What must stay free beside a grant to this request: 0 for one that runs, or alone on the device."""
        if self.is_running(arrival):
            return 0
        older = sum(size_bytes for other, size_bytes in self._refused.items() if other < arrival)
        return self._growth_bytes + older
