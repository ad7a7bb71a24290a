"""In which order tenants give up what they retain: first the one whose next to go is idle for longest.

What of a tenant's goes next is decided by its own policy, which changes its mind; so tenants stand in a heap by what
was true when each was last looked at, and one at the head is looked at again. Nobody is looked at who is not there.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush, heapreplace


class TenantLine:
    """Times count upwards; a tenant that stands in line with nothing idle leaves it when it comes to the head."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []
        self._standing: set[str] = set()

    def join(self, tenant: str, since: int) -> None:
        """It has something that is idle since then. One that stands in line keeps its place."""
        if tenant not in self._standing:
            self._standing.add(tenant)
            heappush(self._heap, (since, tenant))

    def first(self, since_of: Callable[[str], int | None]) -> str | None:
        """The tenant to take from, as `since_of` its next to go says now; it says None where nothing is idle."""
        while self._heap:
            since, tenant = self._heap[0]
            true = since_of(tenant)
            if true is None:
                heappop(self._heap)
                self._standing.remove(tenant)
            elif true > since:
                heapreplace(self._heap, (true, tenant))
            else:
                return tenant
        return None
