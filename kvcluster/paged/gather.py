"""K and V of many sequences gathered out of their blocks into one padded batch. It copies, every byte of them.

The paper's name for this is zero-copy; what it spares is a copy of the whole cache a step, not this one. An engine that
can read blocks where they are does not need it (`engine.paged_attention`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch


class Gathered(NamedTuple):
    """`k` and `v` are [batch, longest, kv_heads, head_dim], zero where `mask` ([batch, longest]) is False."""

    k: torch.Tensor
    v: torch.Tensor
    mask: torch.Tensor


def gather_batched_paged_kv(
    pool: torch.Tensor,
    layer_idx: int,
    block_tables: Sequence[Sequence[int]],
    context_lens: Sequence[int],
    device: torch.device | str = "cpu",
) -> Gathered:
    """Layer `layer_idx` of `pool`, [blocks, 2, layers, kv_heads, block_size, head_dim], by tables of block numbers.

    Raises:
        ValueError: no sequence, not a length each, a length below 1 or beyond its table, or no such layer or block.
    """
    size = pool.shape[4]
    _check(pool, layer_idx, block_tables, context_lens)
    longest = max(context_lens)
    columns = -(-longest // size)
    padded = torch.tensor([[*table[:columns], *[0] * (columns - len(table))] for table in block_tables])
    blocks = pool[padded, :, layer_idx]  # [batch, columns, 2, kv_heads, block_size, head_dim]
    rows = blocks.permute(2, 0, 1, 4, 3, 5).flatten(2, 3)[:, :, :longest].to(device)
    mask = torch.arange(longest, device=rows.device) < torch.tensor(context_lens, device=rows.device)[:, None]
    k, v = rows.masked_fill(~mask[None, :, :, None, None], 0)  # others' rows are none of this batch's
    return Gathered(k, v, mask)


def _check(
    pool: torch.Tensor, layer_idx: int, block_tables: Sequence[Sequence[int]], context_lens: Sequence[int]
) -> None:
    if not block_tables or len(block_tables) != len(context_lens):
        raise ValueError(
            f"{len(block_tables)} tables have {len(context_lens)} lengths: at least one, and a length each"
        )
    if not 0 <= layer_idx < pool.shape[2]:
        raise ValueError(f"there is no layer {layer_idx}: the pool has {pool.shape[2]}")
    for table, tokens in zip(block_tables, context_lens, strict=True):
        if not 1 <= tokens <= len(table) * pool.shape[4]:
            raise ValueError(f"{tokens} tokens do not lie in a table of {len(table)} blocks of {pool.shape[4]}")
        if not all(0 <= number < pool.shape[0] for number in table):
            raise ValueError(f"a table names blocks {list(table)} and the pool has {pool.shape[0]}")
