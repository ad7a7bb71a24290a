"""K and V of a sequence in host pages, as an engine reads and writes them: a block table over the pool's tensor.

What `views.KvViews` is for a range of address. Nothing here owns memory, and nothing is copied but new rows into their
blocks. Every layer keeps every token; a sliding window is what its layers read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from kvcluster.geometry.model import LayerGroup


@dataclass(frozen=True, slots=True)
class PagedViews:
    """K and V over the first `tokens` tokens of a sequence whose blocks are `table`, by number.

    `pool` is [blocks, 2 (K, V), layers, kv_heads, block_size, head_dim]. Rows of the first `frozen` tokens are read and
    never written: others read them too.
    """

    tokens: int
    groups: tuple[LayerGroup, ...]
    table: tuple[int, ...]
    pool: torch.Tensor = field(repr=False)
    frozen: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.tokens <= len(self.table) * self.block_size:
            raise ValueError(f"{self.tokens} tokens do not lie in {len(self.table)} blocks of {self.block_size}")

    @property
    def block_size(self) -> int:
        return self.pool.shape[4]

    def writable(self, start: int, stop: int) -> tuple[PagedRows, ...]:
        """Where the rows of tokens [start, stop) may be written, by model layer.

        Raises:
            ValueError: they do not lie in these.
        """
        if not 0 <= start <= stop <= self.tokens:
            raise ValueError(f"tokens {start} to {stop} do not lie in {self.tokens}")
        pieces = tuple(self._pieces(max(start, self.frozen), stop))
        return tuple(PagedRows(self.pool, layer, start, pieces) for layer in range(self.pool.shape[2]))

    def blocks_of(self, first: int, stop: int) -> tuple[int, ...]:
        """The numbers of the blocks that hold tokens [first, stop)."""
        return self.table[first // self.block_size : -(-stop // self.block_size)]

    def _pieces(self, start: int, stop: int) -> Iterator[Piece]:
        at = start
        while at < stop:
            entry, offset = divmod(at, self.block_size)
            count = min(self.block_size - offset, stop - at)
            yield Piece(self.table[entry], offset, at, count)
            at += count


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens [first, first + count) lie in block `number` from row `offset` on."""

    number: int
    offset: int
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class PagedRows:
    """Where new rows of one layer go; `start` is the token of the first of them."""

    pool: torch.Tensor = field(repr=False)
    layer: int
    start: int
    pieces: Sequence[Piece]

    def copy_(self, src: torch.Tensor, /) -> None:
        """Take [2 (K, V), kv_heads, new tokens, head_dim]."""
        for piece in self.pieces:
            at = piece.first - self.start
            rows = self.pool[piece.number, :, self.layer, :, piece.offset : piece.offset + piece.count]
            rows.copy_(src[:, :, at : at + piece.count])
