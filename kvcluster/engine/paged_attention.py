"""Attention over host pages: K and V are gathered out of their blocks, or read in the blocks where they lie.

Gathered, they are copied once a layer and then computed as in a range: 1.2 to 1.4 times a range's time for one token,
1.0 for a chunk, in whatever order the blocks lie. That copy stays in the processor's cache; where it does not, from
some 16 MiB of K and V a layer on, it took 1.7 to 1.8 times a range's time (docs/decisions/0014).

There one float32 token reads them in place, in 1.2 to 1.7. The blocks of a run (equal steps from number to number) are
one strided operand of torch's batched product: for each head and each place in a block a matrix [blocks, head_dim],
whose rows are one pool step apart. No byte of K or V is copied. Keys come in another order than their tokens, which
matters to no sum. Each run costs two calls. In bfloat16 torch copies such operands by itself; for chunks it took 1.3 to
6 times the time. (Processor time on one core, 4 heads a K head, median of interleaved runs.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch

from kvcluster.geometry.layout import Side
from kvcluster.tensors.paged_views import PagedViews, runs_of
from kvcluster.units import MIB

LONG_BYTES = 16 * MIB  # of one layer's K and V: from here on they are read in place,
BYTES_A_RUN = 1 * MIB  # if this many lie in a run, on average


@dataclass(frozen=True, slots=True)
class BlocksInPlace:
    """What one new token attends to: all blocks of `runs`, but for the keys where `hidden` is minus infinity.

    Keys are ordered by run, then by place in the block, then by block.
    """

    pool: torch.Tensor
    runs: Sequence[range]
    hidden: torch.Tensor

    def of(self, run: range, side: Side, layer: int) -> torch.Tensor:
        """The run's rows as [kv_heads x block_size, blocks, head_dim]: a view, or an error."""
        blocks = self.pool[run.start : run.stop : run.step, side, layer]  # [blocks, kv_heads, block_size, head_dim]
        return blocks.view(len(run), -1, blocks.shape[-1]).transpose(0, 1)


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
) -> BlocksInPlace | GatheredBlocks:
    """Tokens [first, stop) of `views` for new tokens that end at `stop`; `mask` is None for a single one."""
    numbers = views.blocks_of(first, stop)
    before = first % views.block_size
    keys = slice(before, before + stop - first)
    size_bytes = len(numbers) * views.layer_block_bytes
    if mask is None and views.pool.dtype == torch.float32 and size_bytes >= LONG_BYTES:
        runs = runs_of(sorted(numbers))
        if len(runs) * BYTES_A_RUN <= size_bytes:
            return BlocksInPlace(views.pool, runs, _hidden(numbers, runs, views.block_size, keys))
    return GatheredBlocks(views.pool, torch.tensor(numbers), keys, mask, scratch)


def attend_in_place(query: torch.Tensor, reads: BlocksInPlace, layer: int, scaling: float) -> torch.Tensor:
    """One new token: `query` and the result are [1, kv_heads, group, head_dim]."""
    heads, group, dim = query.shape[1:]
    size = reads.pool.shape[4]
    each = (query[0] * scaling).unsqueeze(1).expand(-1, size, -1, -1).reshape(heads * size, group, dim)
    scores = [torch.bmm(reads.of(run, Side.K, layer), each.transpose(1, 2)) for run in reads.runs]
    by_key = torch.cat([one.view(heads, -1, group) for one in scores], dim=1)  # [kv_heads, keys, group]
    weights = (by_key + reads.hidden[:, None]).softmax(1)
    parts = weights.split_with_sizes([size * len(run) for run in reads.runs], dim=1)
    result = query.new_zeros((heads, group, dim))
    for run, part in zip(reads.runs, parts, strict=True):
        of_run = part.reshape(heads * size, len(run), group).transpose(1, 2)
        result += torch.bmm(of_run, reads.of(run, Side.V, layer)).view(heads, size, group, dim).sum(1)
    return result.unsqueeze(0)


def _hidden(numbers: Sequence[int], runs: Sequence[range], size: int, keys: slice) -> torch.Tensor:
    """Added to the scores of all rows of the blocks: what lies before and behind `keys` is not seen."""
    rows = torch.full((len(numbers) * size,), float("-inf"))
    rows[keys] = 0
    ascending = sorted(range(len(numbers)), key=numbers.__getitem__)
    by_block = rows.view(-1, size)[torch.tensor(ascending)]
    return torch.cat([part.t().flatten() for part in by_block.split_with_sizes([len(run) for run in runs])])
