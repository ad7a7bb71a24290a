"""Sequences in host pages: append, fork, write, drop, reorder, and K and V gathered for a batch.

    with BlockPool(1_024, num_layers=8, num_kv_heads=2, head_dim=64) as pool:
        cache = PagedKvCache(pool)
        parent = cache.open()
        cache.append(parent, k, v)                # [layers, kv_heads, tokens, head_dim]
        left, right = cache.fork(parent, 2)       # costs no block
        cache.append(left, k, v)                  # copies the last block first, if others have it too

For whoever computes in this very process. Over many processes the same tables are kept by `services.pages`, and an
engine reads blocks in place instead of gathering them (`engine.paged_attention`).
Source: "Virtual Memory for KV Cache", "CoW does exist, but on the host side".
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvcluster.paged.block_pool import BlockPool
from kvcluster.paged.block_table import BlockTable, BlockTables
from kvcluster.paged.counts import number_of


class PagedKvCache:
    """Sequences over one pool, by number. For one thread."""

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self._tables = BlockTables(pool.counts, pool.shape.block_size)
        self._open: dict[int, tuple[BlockTable, int]] = {}  # the table, and how many tokens are written
        self._last = 0

    def open(self) -> int:
        """A new sequence, without tokens; it costs no block."""
        return self._add(BlockTable(), 0)

    def tokens(self, sequence: int) -> int:
        """How many tokens it has. Raises ValueError for a sequence that is not open."""
        return self._find(sequence)[1]

    def block_table(self, sequence: int) -> list[int]:
        """The numbers of its blocks, in order. Raises ValueError for a sequence that is not open."""
        return [number_of(block) for block in self._find(sequence)[0].blocks]

    def append(self, sequence: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Write K and V of more tokens, each [layers, kv_heads, tokens, head_dim].

        Raises:
            OutOfBlocks: no block is free for them, or for a copy of the last one. Nothing changed.
            ValueError: no tokens, another shape, or a sequence that is not open. Nothing changed.
        """
        table, before = self._find(sequence)
        shape = self.pool.shape
        wanted = (shape.num_layers, shape.num_kv_heads, k.shape[2] if k.dim() == 4 else 0, shape.head_dim)
        if k.shape != v.shape or tuple(k.shape) != wanted or not wanted[2]:
            raise ValueError(f"K and V are [layers, kv_heads, tokens, head_dim] as in {wanted}, not {tuple(k.shape)}")
        after, rows = before + wanted[2], torch.stack((k, v))
        self._grow(table, after)
        self._write(table, before, rows)
        self._open[sequence] = table, after

    def ensure_page_for_write(self, sequence: int) -> int:
        """The number of the block that its next token goes to, which it alone has: copied first if others have it.

        Raises:
            OutOfBlocks: none is free for it. Nothing changed.
            ValueError: a sequence that is not open.
        """
        table, tokens = self._find(sequence)
        self._grow(table, tokens + 1)
        return number_of(table.blocks[tokens // self.pool.shape.block_size])

    def fork(self, sequence: int, n: int) -> list[int]:
        """`n` sequences that go on from it, in the same blocks; all or none. It costs no block.

        Raises:
            ValueError: fewer than 1, or a sequence that is not open, or has no tokens. Nothing changed.
        """
        table, tokens = self._find(sequence)
        return [self._add(child, tokens) for child in self._tables.fork(table, tokens, n)]

    def reorder(self, sequences: Sequence[int], parents: Sequence[int]) -> None:
        """Sequence i goes on from what sequence `parents[i]` of these has; for beams. Only tables move.

        Raises:
            ValueError: not a parent each, one that is none of these, a sequence twice or not open, or of different
                lengths. Nothing changed.
        """
        found = [self._find(sequence) for sequence in sequences]
        lengths = {tokens for _, tokens in found}
        if len(lengths) > 1:
            raise ValueError(f"beams have the same number of tokens, not {sorted(lengths)}")
        if found:
            self._tables.permute([table for table, _ in found], parents, found[0][1])

    def truncate(self, sequence: int, tokens: int) -> None:
        """Keep its first `tokens` tokens. Raises ValueError: it has fewer, or is not open. Nothing changed."""
        table, before = self._find(sequence)
        if not 0 <= tokens <= before:
            raise ValueError(f"sequence {sequence} has {before} tokens and cannot be cut to {tokens}")
        self._tables.truncate(table, tokens)
        self._open[sequence] = table, tokens

    def drop(self, sequence: int) -> None:
        """End it. Raises ValueError for a sequence that is not open. Nothing changed."""
        table, _ = self._find(sequence)
        del self._open[sequence]
        self._tables.drop(table)

    def check_invariants(self) -> None:
        """Raises InvariantBroken where counts and tables do not agree."""
        self.pool.check_invariants()

    def _add(self, table: BlockTable, tokens: int) -> int:
        self._last += 1
        self._open[self._last] = table, tokens
        return self._last

    def _find(self, sequence: int) -> tuple[BlockTable, int]:
        if sequence not in self._open:
            raise ValueError(f"sequence {sequence} is not open")
        return self._open[sequence]

    def _grow(self, table: BlockTable, tokens: int) -> None:
        """Blocks for so many tokens, those to be written its own, with what is copied into them; or as it was."""
        growth = self._tables.grow(table, tokens)
        try:
            for copy in growth.copies:
                self.pool.store.copy_tokens(number_of(copy.source), number_of(copy.target), copy.tokens)
        except BaseException:
            self._tables.undo(table, growth)
            raise
        self._tables.settle(growth)

    def _write(self, table: BlockTable, start: int, rows: torch.Tensor) -> None:
        """[2, layers, kv_heads, tokens, head_dim] from token `start` on."""
        size, done = self.pool.shape.block_size, 0
        while done < rows.shape[3]:
            entry, offset = divmod(start + done, size)
            count = min(size - offset, rows.shape[3] - done)
            block = self.pool.tensor[number_of(table.blocks[entry])]
            block[..., offset : offset + count, :] = rows[..., done : done + count, :]
            done += count
