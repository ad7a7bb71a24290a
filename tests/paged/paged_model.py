"""A pool of small blocks, and sequences whose every row says whose it is: for tests that check content."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from kvcluster.paged.block_pool import BlockPool
from kvcluster.paged.cache import PagedKvCache

LAYERS, HEADS, DIM, SIZE = 2, 1, 2, 4


@contextmanager
def small_pool(blocks: int) -> Iterator[BlockPool]:
    pool = BlockPool(blocks, SIZE, LAYERS, HEADS, DIM, dtype=torch.float32)
    with pool:
        yield pool


def rows(values: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V of tokens with these values, [layers, kv_heads, tokens, head_dim]; V is the negative of K."""
    k = torch.tensor(values, dtype=torch.float32).view(1, 1, -1, 1).expand(LAYERS, HEADS, -1, DIM).clone()
    k[1] += 0.5
    return k, -k


def values_of(cache: PagedKvCache, sequence: int) -> list[int]:
    """What the sequence holds, read back from every layer, head and element; raises where they disagree."""
    tokens = cache.tokens(sequence)
    if not tokens:
        return []
    table = cache.block_table(sequence)
    found = []
    for layer in range(LAYERS):
        k, v, mask = cache.pool.gather_batched_paged_kv(layer, [table], [tokens])
        assert mask.all()
        assert torch.equal(k, -v)
        assert torch.equal(k, k[..., :1, :1].expand_as(k))
        found.append((k[0, :, 0, 0] - 0.5 * layer).to(torch.int64).tolist())
    assert found[0] == found[1]
    return found[0]
