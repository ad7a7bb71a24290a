"""A sequence in host pages, in the process that computes: its block table, and where its rows may be written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvcluster.ids import RequestId
from kvcluster.paged.counts import number_of
from kvcluster.services.asks import Ask, End, Publish
from kvcluster.services.memory_state import MEMORY_MOVES, MemoryState
from kvcluster.services.sequence import SequenceSpec
from kvcluster.services.told import Told
from kvcluster.states import moved

if TYPE_CHECKING:
    import torch

    from kvcluster.services.pages.port import PagePort
    from kvcluster.tensors.paged_views import PagedViews


class SequencePages:
    """`services.kv_port.KvMemory` of host pages. Made by `PagePort.memory`; used by one thread at a time.

    `frozen` tokens are others' too, or may be: their rows are read and not written again. `published` blocks are found
    by others. `told` are the tokens of which the host knows the ids.
    """

    def __init__(self, port: PagePort, request: RequestId, spec: SequenceSpec) -> None:
        self.request = request
        self.spec = spec
        self.arrival: int | None = None
        self.state = MemoryState.NEW
        self.in_flight = False
        self.joined_tokens = 0
        self.frozen = 0
        self.tokens = 0
        self.blocks: list[int] = []
        self.published = 0
        self.told = Told()
        self._port = port

    @property
    def told_tokens(self) -> int:
        """The ids that a Find which succeeded has named."""
        return self.told.heard

    @property
    def committed_bytes(self) -> int:
        """What this sequence pays for alone, as far as it knows."""
        return self._block_bytes * (len(self.blocks) - self._first_writable)

    @property
    def shared_bytes(self) -> int:
        """What others have too, or find."""
        return self._block_bytes * self._first_writable

    @property
    def reserved_bytes(self) -> int:
        """No address is reserved for it: all pages are mapped."""
        return 0

    @property
    def numbers(self) -> tuple[int, ...]:
        """Where its blocks lie."""
        return tuple([number_of(block) for block in self.blocks])

    @property
    def writable(self) -> tuple[int, ...]:
        """Where those lie that it has alone."""
        return self.numbers[self._first_writable :]

    def views(self, dtype: torch.dtype) -> PagedViews:
        """K and V over the committed tokens, in place."""
        from kvcluster.tensors.paged_views import PagedViews

        pool = self._port.store.tensor
        if pool.dtype != dtype:
            raise ValueError(f"these pages hold {pool.dtype} and not {dtype}")
        return PagedViews(self.tokens, self.spec.geometry.groups, self.numbers, pool, frozen=self.frozen)

    def publication(self, tokens: int, *, written: int) -> tuple[Ask, ...]:
        """One ask, where whole blocks of the first `tokens` tokens are written and not found yet."""
        whole = min(tokens, written) // self._port.block_tokens
        return (Publish(self, tokens),) if whole > self.published else ()

    def close(self, *, retain_tokens: int = 0, token_ids: bytes = b"") -> None:
        """Give everything back, and end. Closing twice is once. Raises as `PagePort.submit` and its outcome."""
        if self.state is not MemoryState.CLOSED:
            self._port.one(End(self, retain_tokens, token_ids))

    # --- for the port: what the host's answers change here ------------------------------------------------------------

    def opened(self, arrival: int) -> None:
        self.state = moved(self.state, MemoryState.OPEN, MEMORY_MOVES)
        self.arrival = arrival

    def closed(self) -> None:
        self.state = moved(self.state, MemoryState.CLOSED, MEMORY_MOVES)
        self.emptied()

    def emptied(self) -> None:
        """It holds nothing any more."""
        self.blocks, self.tokens, self.joined_tokens, self.frozen, self.published = [], 0, 0, 0, 0

    def begins_with(self, blocks: Sequence[int], tokens: int, *, published: int, told: Told) -> None:
        """It goes on from these tokens, which others have too, and commits before it writes."""
        self.blocks, self.tokens, self.frozen = list(blocks), tokens, tokens
        self.published, self.told = min(published, tokens // self._port.block_tokens), told.cut(tokens)

    @property
    def _first_writable(self) -> int:
        """From this entry on its blocks are its own."""
        whole, begun = divmod(self.frozen, self._port.block_tokens)
        own_from = whole + (begun > 0 and self.tokens <= self.frozen)  # a begun block is its own once it has grown
        return min(len(self.blocks), max(self.published, own_from))

    @property
    def _block_bytes(self) -> int:
        return self._port.welcome.granule_bytes
