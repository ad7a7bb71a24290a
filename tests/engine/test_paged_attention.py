"""Rows that are gathered out of blocks are those of the table, in the same memory step after step."""

from __future__ import annotations

import random

import pytest
import torch

from kvcluster.engine.paged_attention import GatheredBlocks, Scratch, reads_of_pages
from kvcluster.geometry.model import LayerGroup
from kvcluster.paged.block_pool import BlockPool
from kvcluster.paged.gather import gather_batched_paged_kv
from kvcluster.tensors.paged_views import PagedViews

HEADS, DIM, LAYERS, SIZE = 2, 20, 3, 16  # such a block is no whole number of pages: the pool is strided
SCALING = 0.3
CONTIGUOUS, BY_TURNS, SHUFFLED = list(range(40, 80)), list(range(2, 122, 3)), random.Random(5).sample(range(128), 40)


def views_of(pool: torch.Tensor, table: list[int], tokens: int) -> PagedViews:
    return PagedViews(tokens, (LayerGroup((0, 1, 2), HEADS, DIM, None),), tuple(table), pool)


@pytest.fixture(scope="module")
def pool() -> torch.Tensor:
    with BlockPool(128, SIZE, LAYERS, HEADS, DIM, dtype=torch.float32) as blocks:
        steps, sizes = blocks.tensor.stride(), blocks.tensor.shape
    tensor = torch.empty_strided(sizes, steps)
    assert not tensor.is_contiguous()
    return tensor.normal_(generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("first", "stop"), [(0, 1), (3, 9), (200, 333)])
def test_gathered_rows_are_those_of_the_table(first: int, stop: int, dtype: torch.dtype, pool: torch.Tensor) -> None:
    reads = reads_of_pages(views_of(pool.to(dtype), SHUFFLED, 640), first, stop, None, Scratch())
    assert isinstance(reads, GatheredBlocks)
    k, v, _ = gather_batched_paged_kv(pool.to(dtype), 2, [SHUFFLED], [stop])
    got_k, got_v = reads.of_layer(2)
    assert torch.equal(got_k, k[:, first:].transpose(1, 2))
    assert torch.equal(got_v, v[:, first:].transpose(1, 2))


def test_a_step_gathers_into_the_same_memory_as_long_as_it_is_large_enough() -> None:
    scratch = Scratch()
    large = scratch.tensor((2, 3, 4), torch.float32)
    assert scratch.tensor((3, 2), torch.float32).data_ptr() == large.data_ptr()
    assert scratch.tensor((5, 5), torch.float32).shape == (5, 5)
    assert scratch.tensor((2, 2), torch.bfloat16).dtype == torch.bfloat16
