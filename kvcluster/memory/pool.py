"""Handles between two uses, and where new ones come from.

Creating costs far more than mapping (page allocation; on CUDA a driver call of tens of microseconds), so handles
that come back are kept, newest first, up to a bound. Taking is all or nothing: when the third create fails, the
earlier two are released newest first and the pooled ones are back in the pool.

Physically: created = pooled + out + quarantined. A handle that the driver would not release is quarantined here and
reported once by `drain_lost`, for the ledger to charge.
Source: "Virtual Memory for KV Cache", "an important implementation detail: commit is a transaction".
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

from kvcluster.driver.protocol import Driver
from kvcluster.errors import DriverError, Quarantined, Residue
from kvcluster.ids import HandleId
from kvcluster.memory.handle import Handle, HandleState
from kvcluster.transaction import Transaction


class HandlePool:
    """Handles of `handle_bytes` each; at most `limit_bytes` of them stay pooled."""

    def __init__(self, driver: Driver, *, handle_bytes: int, limit_bytes: int) -> None:
        self._driver = driver
        self.handle_bytes = handle_bytes
        self._limit = limit_bytes // handle_bytes
        self._pooled: deque[Handle] = deque()  # oldest first
        self._counts: Counter[HandleState] = Counter()
        self._numbers: list[HandleId] = []
        self._highest = 0
        self._lost_bytes = 0

    def take(self, count: int) -> list[Handle]:
        """`count` handles, now OUT: pooled ones, newest first, and new ones for the rest.

        Raises:
            DriverError, LimitReached: a create failed and everything was undone. Nothing changed.
            Quarantined: a create failed, and so did the release of an earlier one: that one is quarantined.
        """
        reused = min(count, len(self._pooled))
        created = self._create(count - reused)
        taken = [self._pooled.pop() for _ in range(reused)] + created
        self._move(taken, HandleState.OUT)
        return taken

    def give_back(self, handles: Sequence[Handle]) -> None:
        """Handles that nobody maps any more: pooled as far as the bound allows, else released. Never raises."""
        self._move(handles, HandleState.POOLED)
        self._pooled += handles
        self.trim(self._limit * self.handle_bytes)

    def trim(self, limit_bytes: int) -> None:
        """Release pooled handles, oldest first, until at most `limit_bytes` are pooled. Never raises."""
        while len(self._pooled) > limit_bytes // self.handle_bytes:
            self._destroy([self._pooled[0]])
            self._pooled.popleft()  # only now: it is on the list for as long as it is pooled

    def quarantine(self, handles: Sequence[Handle]) -> None:
        """Handles that may still be mapped. Their bytes are the ledger's business."""
        self._move(handles, HandleState.QUARANTINED)

    def drain_lost(self) -> int:
        """Bytes of handles that could not be released since the last call. They are quarantined for good."""
        lost_bytes, self._lost_bytes = self._lost_bytes, 0
        return lost_bytes

    def bytes_in(self, state: HandleState) -> int:
        """Bytes of all handles in `state`."""
        return self._counts[state] * self.handle_bytes

    @property
    def pooled_bytes(self) -> int:
        """Bytes of the handles that `take` finds, one by one: equals `bytes_in(POOLED)`."""
        return sum(handle.size_bytes for handle in self._pooled if handle.state is HandleState.POOLED)

    @property
    def created_bytes(self) -> int:
        """Bytes created and not released: what the driver should say that it holds."""
        return sum(self._counts.values()) * self.handle_bytes

    def _create(self, count: int) -> list[Handle]:
        made: list[Handle] = []
        with Transaction() as txn:
            txn.doing(f"create {count} handles", count * self.handle_bytes, undo=lambda _: self._unmake(made))
            for _ in range(count):
                handle = Handle(self._next_identity(), self._driver.create(self.handle_bytes))
                self._counts[handle.state] += 1
                made.append(handle)
            txn.keep()
        return made

    def _unmake(self, made: list[Handle]) -> None:
        lost = self._destroy(made[::-1])
        if lost:
            size_bytes = len(lost) * self.handle_bytes
            raise Quarantined(residue=(Residue(f"{len(lost)} handles ({lost[0]})", size_bytes),)) from lost[0]

    def _destroy(self, handles: Sequence[Handle]) -> list[DriverError]:
        """Release each; one failure for each that could not be."""
        failures: list[DriverError] = []
        for handle in handles:
            try:
                self._driver.release(handle.physical)
            except DriverError as failure:
                self._move([handle], HandleState.QUARANTINED)
                self._lost_bytes += handle.size_bytes
                failures.append(failure)
            else:
                self._move([handle], HandleState.GONE)
                self._numbers.append(handle.identity)
        return failures

    def _next_identity(self) -> HandleId:
        if self._numbers:
            last = self._numbers.pop()
            return HandleId(last.number, last.generation + 1)
        self._highest += 1
        return HandleId(self._highest, 0)

    def _move(self, handles: Sequence[Handle], to: HandleState) -> None:
        for handle in handles:
            self._counts[handle.state] -= 1
            handle.move(to)
            if to is not HandleState.GONE:
                self._counts[to] += 1
            if to is HandleState.OUT:
                handle.identity = HandleId(handle.identity.number, handle.identity.generation + 1)
