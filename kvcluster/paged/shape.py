"""How large a block is, and how blocks lie in memory: arithmetic only.

    [blocks, 2 (K, V), layers, kv_heads, block_tokens, head_dim]

One block after the other at equal steps of whole memory pages, so that access can be given and taken a block at a
time. For the shapes of real models a block is whole pages by itself; where it is not, what is left over is unused.
Source: "Paged KV-Cache Memory Management".
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass

from kvcluster.geometry.model import KvGeometry
from kvcluster.units import ceil_div


@dataclass(frozen=True, slots=True)
class PageShape:
    """All tokens of all layers are kept alike: a sliding window is something that is read, and not kept, here.

    Raises:
        ValueError: a figure is below 1.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    element_bytes: int
    block_size: int = 16  # tokens

    def __post_init__(self) -> None:
        figures = (self.num_layers, self.num_kv_heads, self.head_dim, self.element_bytes, self.block_size)
        if min(figures) < 1:
            raise ValueError(f"layers, heads, head size, element and block size are at least 1, not {figures}")

    @classmethod
    def of(cls, geometry: KvGeometry, *, block_size: int = 16) -> PageShape:
        """The pages of a model.

        Raises:
            ValueError: its layers differ in heads or head size, or are not numbered from 0 without a gap.
        """
        layers = sorted(layer for group in geometry.groups for layer in group.layers)
        if layers != list(range(len(layers))) or len({(g.kv_heads, g.head_dim) for g in geometry.groups}) != 1:
            raise ValueError("host pages keep models whose layers all have the same heads: use a device for this one")
        group = geometry.groups[0]
        return cls(len(layers), group.kv_heads, group.head_dim, geometry.element_bytes, block_size)

    @property
    def token_bytes(self) -> int:
        """K and V of one token in all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.element_bytes

    @property
    def block_bytes(self) -> int:
        return self.block_size * self.token_bytes

    @property
    def pitch_bytes(self) -> int:
        """From one block to the next."""
        return ceil_div(self.block_bytes, mmap.PAGESIZE) * mmap.PAGESIZE

    def blocks_of(self, tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return ceil_div(tokens, self.block_size)
