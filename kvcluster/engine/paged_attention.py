"""Attention over host pages: K and V are read in the blocks where they lie.

Consecutive blocks are one strided batch for torch, a head at a time: [blocks, block_size, head_dim] with the pool's
step between blocks, so no byte of K or V is copied. The scores of all runs stand side by side and share one softmax, in
float32. Each run and head costs two calls, so a table that is in many pieces is gathered instead: it copies, and at
2,048 tokens in single blocks that took 0.6 ms where the calls took 29 (31 M Llama, one layer, one token, 2 cores).
So it is for bfloat16, whose batched products were 2 to 8 times slower than the gathered one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from kvcluster.geometry.layout import Side
from kvcluster.tensors.paged_views import PagedViews, runs_of

BLOCKS_A_RUN = 8  # at least, on average, where blocks are read in place


@dataclass(frozen=True, slots=True)
class PagedReads:
    """What one slice attends to in a group's layers: tokens [first, stop) of its pages, all of them by the last row.

    `mask` is added to the scores, [new tokens, keys]; None for a single token.
    """

    views: PagedViews
    first: int
    stop: int
    mask: torch.Tensor | None

    @property
    def in_place(self) -> bool:
        """Whether the blocks are few enough pieces to be read where they lie."""
        numbers = self.views.blocks_of(self.first, self.stop)
        return (
            self.views.pool.dtype == torch.float32
            and len(runs_of(numbers)) * BLOCKS_A_RUN <= len(numbers) + BLOCKS_A_RUN
        )


def attend_pages(query: torch.Tensor, reads: PagedReads, layer: int, scaling: float) -> torch.Tensor:
    """`query` is [1, kv_heads, group, rows, head_dim]; the result is [rows, kv_heads, group, head_dim]."""
    _, heads, group, rows, dim = query.shape
    flat = query[0].reshape(heads, group * rows, dim)
    result = (_in_place if reads.in_place else _gathered)(flat, reads, layer, scaling)
    return result.view(heads, group, rows, dim).permute(2, 0, 1, 3)


def _in_place(query: torch.Tensor, reads: PagedReads, layer: int, scaling: float) -> torch.Tensor:
    """[kv_heads, group x rows, head_dim]: scores of all blocks, one softmax, and what they weigh."""
    views, size = reads.views, reads.views.block_size
    runs = runs_of(views.blocks_of(reads.first, reads.stop))
    heads, rows, _ = query.shape
    scores = query.new_empty((heads, rows, size * sum(count for _, count in runs)))
    for start, count, keys in _places(runs, size):
        k = views.pool[start : start + count, Side.K, layer]  # [count, kv_heads, size, head_dim]
        for head in range(heads):
            of_run = torch.matmul(query[head], k[:, head].transpose(1, 2))  # [count, rows, size]
            scores[head, :, keys].view(rows, count, size).copy_(of_run.transpose(0, 1))
    weights = _weights(scores, reads, scaling)
    result = torch.zeros_like(query)
    for start, count, keys in _places(runs, size):
        v = views.pool[start : start + count, Side.V, layer]
        for head in range(heads):
            of_run = weights[head, :, keys].view(rows, count, size).transpose(0, 1)
            result[head] += torch.bmm(of_run, v[:, head]).sum(0)
    return result


def _places(runs: list[tuple[int, int]], size: int) -> list[tuple[int, int, slice]]:
    """Each run, and the keys that are its."""
    places, at = [], 0
    for start, count in runs:
        places.append((start, count, slice(at, at + count * size)))
        at += count * size
    return places


def _weights(scores: torch.Tensor, reads: PagedReads, scaling: float) -> torch.Tensor:
    """Of the keys from the first block's beginning on: those before `first` and from `stop` on weigh nothing."""
    size = reads.views.block_size
    before = reads.first % size
    keys = reads.stop - reads.first
    scores *= scaling
    scores[..., :before] = float("-inf")
    scores[..., before + keys :] = float("-inf")
    if reads.mask is not None:
        new = reads.mask.shape[0]
        seen = scores[..., before : before + keys]
        seen.view(seen.shape[0], -1, new, keys).add_(reads.mask)
    return scores.softmax(-1)


def _gathered(query: torch.Tensor, reads: PagedReads, layer: int, scaling: float) -> torch.Tensor:
    views = reads.views
    numbers = torch.tensor(views.blocks_of(reads.first, reads.stop))
    blocks = views.pool[numbers, :, layer]  # [count, 2, kv_heads, size, head_dim]
    before = reads.first % views.block_size
    rows = blocks.permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, before : before + reads.stop - reads.first]
    mask = None if reads.mask is None else reads.mask.repeat(query.shape[1] // reads.mask.shape[0], 1)
    k, v = rows[Side.K].unsqueeze(0), rows[Side.V].unsqueeze(0)
    return scaled_dot_product_attention(query.unsqueeze(0), k, v, attn_mask=mask, scale=scaling)[0]
