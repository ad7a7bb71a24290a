"""Host pages where torch attends: K and V are gathered out of their blocks, once a layer, and then computed as a range.

That takes 1.2 to 1.8 times a range's time for one token, the more the less the copy fits the processor's cache, and as
long for a chunk. The compiled operators (`kernels/`) read the blocks where they lie; this is for whoever has none, and
for heads that those do not compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch

from kvcluster.tensors.paged_views import PagedViews


class Scratch:
    """Where a step gathers blocks: one layer of one slice at a time, each over what was there before.

    A fresh tensor for each is fresh memory from the kernel once it is large: at 2 MiB a step took 2.3 times as long.
    """

    def __init__(self) -> None:
        self._memory = torch.empty(0)

    def tensor(self, sizes: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Of any content, and valid until the next call."""
        count = prod(sizes)
        if self._memory.dtype != dtype or self._memory.numel() < count:
            self._memory = torch.empty(count, dtype=dtype)
        return self._memory[:count].view(*sizes)


@dataclass(frozen=True, slots=True)
class GatheredBlocks:
    """What a slice attends to: rows `keys` of these blocks, one behind the other; `mask` as in `batch.Reads`."""

    pool: torch.Tensor
    numbers: torch.Tensor
    keys: slice
    mask: torch.Tensor | None
    scratch: Scratch

    def of_layer(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A copy, valid until the scratch's next use: K and V as [1, kv_heads, keys, head_dim]."""
        blocks = self.pool.select(2, layer).permute(1, 2, 0, 3, 4)  # [2, kv_heads, blocks, block_size, head_dim]
        sides, heads, _, size, dim = blocks.shape
        copy = self.scratch.tensor((sides, heads, len(self.numbers), size, dim), self.pool.dtype)
        torch.index_select(blocks, 2, self.numbers, out=copy)
        k, v = copy.flatten(2, 3)[:, None, :, self.keys]
        return k, v


def reads_of_pages(
    views: PagedViews, first: int, stop: int, mask: torch.Tensor | None, scratch: Scratch
) -> GatheredBlocks:
    """Tokens [first, stop) of `views` for new tokens that end at `stop`; `mask` is None for a single one."""
    before = first % views.block_size
    keys = slice(before, before + stop - first)
    return GatheredBlocks(views.pool, torch.tensor(views.blocks_of(first, stop)), keys, mask, scratch)
