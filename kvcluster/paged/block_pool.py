"""The pool of "Paged KV-Cache Memory Management", in host memory: blocks of 16 tokens, and who has them.

One tensor [num_blocks, 2, num_layers, num_kv_heads, block_size, head_dim] on a memfd, and the counts of its blocks.
Any free block serves any sequence, so nothing is refused while enough are free, and a sequence of N tokens wastes at
most (block_size - 1) / N of its memory. Sequences over it are in `paged.cache`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from types import TracebackType
from typing import Self

import torch

from kvcluster.paged.counts import BlockCounts
from kvcluster.paged.gather import Gathered, gather_batched_paged_kv
from kvcluster.paged.shape import PageShape
from kvcluster.paged.store import PageStore, open_store

_FIRST_LIVES = count(step=1 << 20)  # an id of one pool is none of another pool of this process


class BlockPool:
    """Blocks with memory behind them. Close it, or use it as a context; tensors of it end with it.

    Raises:
        LimitReached, DriverError: the machine has not so much memory. Nothing is left.
        ValueError: a figure is below 1.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int = 16,
        num_layers: int = 24,
        num_kv_heads: int = 2,
        head_dim: int = 64,
        *,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        shape = PageShape(num_layers, num_kv_heads, head_dim, dtype.itemsize, block_size)
        self.counts = BlockCounts(num_blocks, generation=next(_FIRST_LIVES))
        self.store: PageStore = open_store(shape, num_blocks, dtype)

    @property
    def shape(self) -> PageShape:
        return self.store.shape

    @property
    def tensor(self) -> torch.Tensor:
        """[num_blocks, 2 (K, V), num_layers, num_kv_heads, block_size, head_dim]; by a block's number."""
        return self.store.tensor

    @property
    def free_blocks(self) -> int:
        return self.counts.free

    def allocate_block(self) -> int:
        """One free block's id, with one reference. Raises OutOfBlocks: none is free. Nothing changed."""
        return self.counts.allocate(1)[0]

    def free_block(self, block: int) -> None:
        """Drop one reference; the last one frees it. Raises ValueError as `BlockCounts.drop`. Nothing changed."""
        self.counts.drop([block])

    def gather_batched_paged_kv(
        self,
        layer_idx: int,
        block_tables: Sequence[Sequence[int]],
        context_lens: Sequence[int],
        device: torch.device | str = "cpu",
    ) -> Gathered:
        """K and V of one layer for a batch of tables of block numbers: see `paged.gather`. It copies."""
        return gather_batched_paged_kv(self.tensor, layer_idx, block_tables, context_lens, device)

    def check_invariants(self) -> None:
        """Raises InvariantBroken where a block is free and had, or neither."""
        self.counts.check_invariants()

    def close(self) -> None:
        """Give the memory back. Closing twice is once."""
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
