"""K and V of a sequence copied between a range of address and host pages: rows, layer by layer, and nothing computed.

A ring holds the last window of its layers and no more. That is all that computing goes on from; but the pages of a
sequence that came out of rings do not hold the rows of the tokens before, and nobody else can begin with them.
"""

from __future__ import annotations

import torch

from kvcluster.tensors.paged_views import PagedViews
from kvcluster.tensors.views import GroupView, KvViews


def copy_to_pages(source: KvViews, target: PagedViews, tokens: int) -> bool:
    """Copy the first `tokens` tokens, or what rings hold of them. Whether that was all.

    Raises:
        ValueError: they do not lie in both, or the layers are not the same.
    """
    _check(source, target, tokens)
    for group in source.groups:
        first = _first_held(group, tokens)
        rows, places = group.rows.block(first, tokens - first), target.writable(first, tokens)
        for number, layer in enumerate(group.layers):
            places[layer].copy_(rows[number])
    return not any(_first_held(group, tokens) for group in source.groups)


def copy_from_pages(source: PagedViews, target: KvViews, tokens: int) -> None:
    """Copy the first `tokens` tokens; into rings, the last window of them. Raises as `copy_to_pages`."""
    _check(target, source, tokens)
    for group in target.groups:
        layers = torch.tensor(group.layers)
        at = _first_held(group, tokens)
        while at < tokens:
            entry, offset = divmod(at, source.block_size)
            count = min(source.block_size - offset, tokens - at)
            rows = source.pool[source.table[entry]].index_select(1, layers)[..., offset : offset + count, :]
            group.rows.block(at, count).copy_(rows.transpose(0, 1))
            at += count


def _first_held(group: GroupView, tokens: int) -> int:
    """The first token whose rows there are once `tokens` are written, as far as they are ever read again."""
    if not group.rows.ring or group.window_tokens is None:
        return 0
    return max(0, tokens - group.window_tokens)


def _check(ranges: KvViews, pages: PagedViews, tokens: int) -> None:
    if tokens > min(ranges.tokens, pages.tokens):
        raise ValueError(f"{tokens} tokens do not lie in {ranges.tokens} of a range and {pages.tokens} in pages")
    layers = {layer for group in ranges.groups for layer in group.layers}
    if layers != set(range(pages.pool.shape[2])):
        raise ValueError(f"the range has layers {sorted(layers)}, and the pages have {pages.pool.shape[2]}")
