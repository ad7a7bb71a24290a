"""The attention function: K and V go straight into mapped memory, and are read there.

transformers calls it in every layer with the packed row of all sequences. The cache is never concatenated, padded or
copied; a sliding window is one piece of its ring. On the CPU both acts are the compiled operators' (`kernels/`), which
take all sequences at once: for one new token 2 to 10 times as fast as torch.

Without them each slice's K and V are written into its views, then torch's scaled dot product runs over them, a sequence
at a time. Heads that share a K head are given as rows (one new token) or as a batch that reads the same K (a chunk):
with `enable_gqa` one bfloat16 token was 29 to 60 times slower.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from kvcluster.engine.batch import AnyReads, PackedBatch
from kvcluster.engine.kernels.library import TYPES, Kernels, Layer

ATTENTION_NAME = "kvcluster"


def register_attention() -> None:
    """Make the function known to transformers by its name. Doing so again changes nothing."""
    ALL_ATTENTION_FUNCTIONS.register(ATTENTION_NAME, attend)


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    kv_batch: PackedBatch,
    scaling: float,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Write the layer's new K and V, and attend: `query` is [1, heads, rows, head_dim], the result [1, rows, heads, .].

    The row's own `attention_mask` is None, since each slice has its own; dropout does not apply.
    """
    layer: int = module.layer_idx  # type: ignore[assignment]
    if kv_batch.kernels is not None:
        return _by_kernels(kv_batch.kernels, kv_batch, layer, (query, key, value), scaling, sliding_window), None
    _write(kv_batch, layer, key, value)
    by_group = query.reshape(1, key.shape[1], -1, *query.shape[2:])  # [1, kv_heads, group, rows, head_dim]
    queries = by_group.split_with_sizes(kv_batch.sizes, dim=3)
    reads = kv_batch.reads(layer, sliding_window)
    rows = torch.cat([_attended(piece, read, layer, scaling) for piece, read in zip(queries, reads, strict=True)])
    return rows.flatten(1, 2).unsqueeze(0), None


def _by_kernels(
    kernels: Kernels,
    kv_batch: PackedBatch,
    layer: int,
    new: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    scaling: float,
    window: int | None,
) -> torch.Tensor:
    query, key, value = (_rows_first(one) for one in new)
    table = kv_batch.table(layer, window)
    what = Layer(
        type=TYPES[query.dtype],
        index=kv_batch.place_in_group(layer),
        number=layer,
        heads=query.shape[1],
        kv_heads=key.shape[1],
        head_dim=query.shape[2],
        window=window or 0,
        scaling=scaling,
    )
    kernels.write(what, table, key, value)
    result = query.new_empty(query.shape)
    kernels.attend(what, table, query, result)
    return result.unsqueeze(0)


def _rows_first(of_heads: torch.Tensor) -> torch.Tensor:
    """[1, heads, rows, head_dim] as [rows, heads, head_dim], each vector dense."""
    rows = of_heads[0].transpose(0, 1)
    return rows if rows.stride(-1) == 1 else rows.contiguous()


def _write(kv_batch: PackedBatch, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
    new = torch.cat((key, value)).split_with_sizes(kv_batch.sizes, dim=2)
    for place, rows in zip(kv_batch.writes[layer], new, strict=True):
        place.copy_(rows)


def _attended(query: torch.Tensor, read: AnyReads, layer: int, scaling: float) -> torch.Tensor:
    """One slice's rows as [rows, kv_heads, group, head_dim]."""
    k, v = read.of_layer(layer)
    if query.shape[3] == 1:
        return _attended_by_one(query.squeeze(3), k, v, scaling)
    by_group = query[0].transpose(0, 1)  # [group, kv_heads, rows, head_dim]: each of the group reads the same K
    shared = (by_group.shape[0], -1, -1, -1)
    result = scaled_dot_product_attention(
        by_group, k.expand(shared), v.expand(shared), attn_mask=read.mask, scale=scaling
    )
    return result.permute(2, 1, 0, 3)


def _attended_by_one(query: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float) -> torch.Tensor:
    """One new token, whose heads are rows: `query` and the result are [1, kv_heads, group, head_dim]."""
    if query.shape[2] == 1 and query.dtype is not torch.float32:  # the same row twice: 3 times as fast as one row
        twice = scaled_dot_product_attention(query.expand(-1, -1, 2, -1), k, v, scale=scaling)
        return twice[:, :, :1]
    return scaled_dot_product_attention(query, k, v, scale=scaling)
