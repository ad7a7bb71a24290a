"""Attention over blocks against torch's own over the same rows in one piece; and which bytes are copied for it."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.profiler import ProfilerActivity, profile

from kvcluster.engine import paged_attention
from kvcluster.engine.paged_attention import BlocksInPlace, GatheredBlocks, Scratch, attend_in_place, reads_of_pages
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


@pytest.fixture
def always_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_attention, "LONG_BYTES", 0)
    monkeypatch.setattr(paged_attention, "BYTES_A_RUN", 0)


@pytest.mark.usefixtures("always_in_place")
@pytest.mark.parametrize("table", [CONTIGUOUS, BY_TURNS, SHUFFLED], ids=["contiguous", "by turns", "shuffled"])
@pytest.mark.parametrize(("first", "stop"), [(0, 1), (0, 16), (0, 17), (3, 9), (15, 16), (200, 333), (0, 640)])
@pytest.mark.parametrize("group", [1, 4])
def test_one_token_sees_the_rows_of_its_table_in_place(
    group: int, first: int, stop: int, table: list[int], pool: torch.Tensor
) -> None:
    reads = reads_of_pages(views_of(pool, table, 640), first, stop, None, Scratch())
    assert isinstance(reads, BlocksInPlace)
    query = torch.randn(1, HEADS, group, DIM)
    k, v, _ = gather_batched_paged_kv(pool, 1, [table], [stop])
    rows = [side[:, first:].transpose(1, 2) for side in (k, v)]
    expected = scaled_dot_product_attention(query, *rows, scale=SCALING)
    torch.testing.assert_close(attend_in_place(query, reads, 1, SCALING), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("first", "stop"), [(0, 1), (3, 9), (200, 333)])
def test_gathered_rows_are_those_of_the_table(first: int, stop: int, dtype: torch.dtype, pool: torch.Tensor) -> None:
    reads = reads_of_pages(views_of(pool.to(dtype), SHUFFLED, 640), first, stop, None, Scratch())
    assert isinstance(reads, GatheredBlocks)
    k, v, _ = gather_batched_paged_kv(pool.to(dtype), 2, [SHUFFLED], [stop])
    got_k, got_v = reads.of_layer(2)
    assert torch.equal(got_k, k[:, first:].transpose(1, 2))
    assert torch.equal(got_v, v[:, first:].transpose(1, 2))


def largest_allocation(reads: BlocksInPlace) -> int:
    query = torch.randn(1, HEADS, 4, DIM)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        attend_in_place(query, reads, 0, SCALING)
    return max(event.self_cpu_memory_usage for event in profiled.events())


@pytest.mark.usefixtures("always_in_place")
@pytest.mark.parametrize("table", [CONTIGUOUS, BY_TURNS], ids=["contiguous", "by turns"])
def test_in_place_nothing_as_large_as_k_is_made(table: list[int], pool: torch.Tensor) -> None:
    views = views_of(pool, table, 640)
    reads = reads_of_pages(views, 0, 640, None, Scratch())
    assert isinstance(reads, BlocksInPlace)
    assert len(reads.runs) == 1
    assert largest_allocation(reads) < 640 * HEADS * DIM * 4 / 2


def way(pool: torch.Tensor, table: list[int], mask: torch.Tensor | None = None) -> type:
    return type(reads_of_pages(views_of(pool, table, len(table) * SIZE), 0, len(table) * SIZE, mask, Scratch()))


def test_one_float32_token_over_long_runs_is_read_in_place_and_all_else_is_gathered() -> None:
    pool = torch.empty(256, 2, 1, 8, SIZE, 128)  # of 128 KiB a block
    assert way(pool, list(range(128))) is BlocksInPlace
    assert way(pool, list(range(127))) is GatheredBlocks  # too short
    assert way(pool, random.Random(2).sample(range(256), 128)) is GatheredBlocks  # in too many runs
    assert way(pool, list(range(128)), mask=torch.zeros(3, 128 * SIZE)) is GatheredBlocks  # several tokens
    assert way(pool.bfloat16(), list(range(256))) is GatheredBlocks


def test_a_step_gathers_into_the_same_memory_as_long_as_it_is_large_enough() -> None:
    scratch = Scratch()
    large = scratch.tensor((2, 3, 4), torch.float32)
    assert scratch.tensor((3, 2), torch.float32).data_ptr() == large.data_ptr()
    assert scratch.tensor((5, 5), torch.float32).shape == (5, 5)
    assert scratch.tensor((2, 2), torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.usefixtures("always_in_place")
def test_a_rounding_apart_the_order_of_blocks_in_the_pool_does_not_matter(pool: torch.Tensor) -> None:
    """The same rows behind three tables: what is seen is the rows, and not where they lie."""
    query = torch.randn(1, HEADS, 4, DIM)
    results = []
    for table in (CONTIGUOUS, BY_TURNS, SHUFFLED):
        moved = torch.empty_strided(pool.shape, pool.stride()).fill_(float("nan"))
        moved[table] = pool[CONTIGUOUS]
        reads = reads_of_pages(views_of(moved, table, 640), 5, 635, None, Scratch())
        assert isinstance(reads, BlocksInPlace)
        results.append(attend_in_place(query, reads, 0, SCALING))
    for one, other in pairwise(results):
        torch.testing.assert_close(one, other)
