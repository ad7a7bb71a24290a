"""The memories of a batch: a request a row, at equal steps of address, so that one strided tensor reads all of them.

    row 0            row 1            row 2
    [ tokens ......  [ tokens ......  [ tokens ......       each its own request, charged and released by itself

They grow together: what one row is refused no row keeps. A row that is not needed any more is given back while the
others stay where they are. It holds no tensors and no token counts: `engine.kv_cache` does. One reservation for the
whole batch was the other choice: it takes one request and one undo less, and no row can be given back by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from kvcluster.driver.gate import operation
from kvcluster.errors import DeviceUnreachable, KvClusterError
from kvcluster.services.asks import MOST_ASKS, Ask, End, Grow, Shed, Trim
from kvcluster.services.memory_state import MemoryState
from kvcluster.services.sequence import SequenceMemory

if TYPE_CHECKING:
    import torch

    from kvcluster.services.port import DevicePort
    from kvcluster.tensors.batch_views import BatchViews

MOST_ROWS = MOST_ASKS


class BatchMemory:
    """Made by `DevicePort.open_batch`; used by one thread at a time. `memories` are its rows', in address order."""

    def __init__(self, port: DevicePort, memories: Sequence[SequenceMemory]) -> None:
        self.memories = tuple(memories)
        self._port = port

    @property
    def rows(self) -> int:
        """The most rows."""
        return len(self.memories)

    @property
    def max_tokens(self) -> int:
        """The most tokens of each row."""
        return self.memories[0].spec.max_tokens

    @property
    def address(self) -> int:
        """Where the first row begins; the same from the opening to `close`."""
        return self.memories[0].address

    @property
    def is_open(self) -> bool:
        """Whether what is committed is mapped: not after a close, of this, its port or its device."""
        return all(memory.state is not MemoryState.CLOSED for memory in self.memories)

    @property
    def is_host_memory(self) -> bool:
        """Whether the CPU reads it."""
        return self._port.driver.is_host_memory

    @property
    def committed_bytes(self) -> int:
        """What all rows pay for."""
        return sum(memory.committed_bytes for memory in self.memories)

    def tokens(self, rows: int) -> int:
        """The most tokens that what is committed holds in each of the first `rows` rows."""
        return min(memory.tokens for memory in self.memories[:rows])

    @operation
    def commit(self, rows: int, tokens: int) -> None:
        """Back the first `tokens` tokens of the first `rows` rows with memory, in one frame: of all of them, or none.

        Raises:
            OutOfBudget, NeverFits: not now, or never. Nothing changed, but that the device may know the requests.
            NotAllowed, ValueError: a row is closed or quarantined, or has not so many tokens. Nothing changed.
            DriverError, LimitReached: a call failed, and everything was undone.
            Quarantined: and an undo failed. Those bytes stay charged, and a row that has them takes no more commits.
            DeviceUnreachable: nothing was heard of the device; what it did counts as not done. Nothing changed.
            SessionEnded: the device ended the session: every row is closed.
        """
        if not self._port.in_touch():
            raise DeviceUnreachable(device=self._port.welcome.device, reason="it is being sought; try again")
        mine = [(memory, memory.tokens) for memory in self.memories[:rows]]
        outcomes = self._port.submit([Grow(memory, tokens) for memory, _ in mine]).settle()
        errors = [outcome.error for outcome in outcomes if outcome.error]
        if errors:
            try:
                self._give_back([Trim(memory, before) for memory, before in mine if memory.tokens > before])
            except KvClusterError as failure:
                raise failure from errors[0]
            raise errors[0]

    @operation
    def trim(self, rows: int, tokens: int) -> None:
        """Keep the first `tokens` tokens of the first `rows` rows; whole granules of all else go back.

        Raises:
            Quarantined: some windows could not be unmapped: they stay charged until this process is gone, and their
                row takes no more commits. All else is given back.
            DriverError: a graph is being captured. Nothing changed.
        """
        kept = self.memories[:rows] if tokens else ()
        asks: list[Ask] = [Trim(memory, tokens) for memory in kept if memory.tokens > tokens]
        asks += [Shed(memory) for memory in self.memories[len(kept) :] if memory.committed_bytes]
        self._give_back(asks)

    @operation
    def close(self) -> None:
        """Give everything back, and end every row's request; the address goes with the last. Closing again is no error.

        Raises:
            Quarantined, DriverError: as `SequenceMemory.close`, for a row; the others are closed.
        """
        self._give_back([End(memory) for memory in self.memories if memory.state is not MemoryState.CLOSED])

    def views(self, dtype: torch.dtype, device: torch.device) -> BatchViews:
        """K and V of every layer and row over the committed tokens; see `tensors.batch_views`."""
        from kvcluster.tensors.batch_views import batch_views

        first = self.memories[0]
        return batch_views(first.address, first.range.range_map, first.spec.geometry, self.rows, dtype, device)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _give_back(self, asks: Sequence[Ask]) -> None:
        if asks:
            outcomes = self._port.submit(asks).settle()
            for outcome in outcomes:
                if outcome.error:
                    raise outcome.error
