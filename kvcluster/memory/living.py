"""Every handle that exists on one driver: made, moved from state to state, released; and how many bytes each state has.

A release that the driver refuses leaves the handle quarantined and its bytes lost, reported once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from kvcluster.driver.protocol import Driver
from kvcluster.errors import DriverError, Quarantined
from kvcluster.ids import HandleId
from kvcluster.memory.handle import Handle, HandleState, move_all


class Living:
    """`failure` is the last that cost memory, or kept it from going, until what was lost is drained."""

    def __init__(self, driver: Driver) -> None:
        self.failure: DriverError | Quarantined | None = None
        self._driver = driver
        self._by_number: dict[int, Handle] = {}
        self._bytes: Counter[HandleState] = Counter()
        self._numbers: list[HandleId] = []
        self._highest = 0
        self._lost: Counter[str] = Counter()
        self._forgotten: list[HandleId] = []

    def create(self, size_bytes: int, tenant: str | None) -> Handle:
        """A new one, POOLED. Raises as `Driver.create`; nothing changed."""
        physical = self._driver.create(size_bytes)  # first: a number is used only for what exists
        handle = Handle(self._next_identity(), physical, tenant=tenant)
        self._by_number[handle.identity.number] = handle
        self._bytes[handle.state] += size_bytes
        return handle

    def release(self, handle: Handle) -> DriverError | None:
        """To the driver; the failure, where it would not: then the handle is quarantined, and lost."""
        try:
            self._driver.release(handle.physical)
        except DriverError as failure:
            self.lose(handle, failure)
            return failure
        self.move([handle], HandleState.GONE)
        del self._by_number[handle.identity.number]
        self._numbers.append(handle.identity)
        if handle.was_handed_over:
            self._forgotten.append(handle.identity)
        return None

    def lose(self, handle: Handle, failure: DriverError | Quarantined) -> None:
        """It cannot be used or released any more: quarantined for good.

        What was pooled is nobody's bill: it is lost to the device, not to whoever had it last.
        """
        payer = "" if handle.state is HandleState.POOLED else handle.payer
        if handle.state is not HandleState.QUARANTINED:
            self.move([handle], HandleState.QUARANTINED)
        self._lost[payer] += handle.size_bytes
        self.failure = failure

    def move(self, handles: Iterable[Handle], to: HandleState) -> None:
        """Raises as `move_all`."""
        for state, size_bytes in move_all(handles, to).items():
            self._bytes[state] -= size_bytes
            if to is not HandleState.GONE:
                self._bytes[to] += size_bytes

    def drain_lost(self) -> dict[str, int]:
        """Bytes, by tenant, that could not be released since the last call."""
        lost, self._lost, self.failure = dict(self._lost), Counter(), None
        return lost

    def drain_forgotten(self) -> list[HandleId]:
        """Those released since the last call of which another process was given a descriptor."""
        forgotten, self._forgotten = self._forgotten, []
        return forgotten

    def bytes_in(self, state: HandleState) -> int:
        """Of all in `state`."""
        return self._bytes[state]

    def counted_bytes(self, state: HandleState) -> int:
        """The same, one by one."""
        return sum(handle.size_bytes for handle in self._by_number.values() if handle.state is state)

    @property
    def size_bytes(self) -> int:
        """What the driver should say that it holds."""
        return self._bytes.total()

    def _next_identity(self) -> HandleId:
        if self._numbers:
            last = self._numbers.pop()
            return HandleId(last.number, last.generation + 1)
        self._highest += 1
        return HandleId(self._highest, 0)
