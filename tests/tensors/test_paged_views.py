"""Views of host pages: where new rows go, what is never written, and tables as runs of blocks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvcluster.geometry.model import LayerGroup
from kvcluster.tensors.paged_views import PagedViews

HEADS, DIM, LAYERS, SIZE, BLOCKS = 2, 3, 2, 4, 12
GROUPS = (LayerGroup((0, 1), HEADS, DIM, None),)


def new_pool() -> torch.Tensor:
    """With a step between blocks that is more than a block."""
    return torch.zeros(BLOCKS, 2 * LAYERS * HEADS * SIZE * DIM + 7)[:, :-7].view(BLOCKS, 2, LAYERS, HEADS, SIZE, DIM)


def rows_of(pool: torch.Tensor, table: list[int], layer: int) -> torch.Tensor:
    """[2, heads, tokens, dim], block by block."""
    return torch.cat([pool[number, :, layer] for number in table], dim=2)


@given(
    table=st.lists(st.integers(0, BLOCKS - 1), min_size=1, max_size=6, unique=True),
    cuts=st.tuples(*[st.integers(0, 24)] * 2).map(sorted),
    frozen=st.integers(0, 24),
    layer=st.integers(0, LAYERS - 1),
)
def test_new_rows_go_to_their_places_in_their_layer_and_nowhere_else(
    table: list[int], cuts: list[int], frozen: int, layer: int
) -> None:
    pool, held = new_pool(), len(table) * SIZE
    start, stop = (min(cut, held) for cut in cuts)
    new = 1 + torch.rand(2, HEADS, stop - start, DIM)
    PagedViews(held, GROUPS, tuple(table), pool, frozen).writable(start, stop)[layer].copy_(new)
    wanted = torch.zeros(2, HEADS, held, DIM)
    first = min(max(start, frozen), stop)
    wanted[:, :, first:stop] = new[:, :, first - start :]
    assert torch.equal(rows_of(pool, table, layer), wanted)
    assert torch.count_nonzero(pool) == torch.count_nonzero(wanted)


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 11)])
def test_rows_that_do_not_lie_in_the_views_are_refused(start: int, stop: int) -> None:
    with pytest.raises(ValueError, match="do not lie in 10"):
        PagedViews(10, GROUPS, (0, 1, 2), new_pool()).writable(start, stop)


@pytest.mark.parametrize("tokens", [-1, 13])
def test_tokens_beyond_the_table_are_refused(tokens: int) -> None:
    with pytest.raises(ValueError, match="do not lie in 3 blocks of 4"):
        PagedViews(tokens, GROUPS, (0, 1, 2), new_pool())


def test_blocks_are_those_that_hold_the_tokens() -> None:
    views = PagedViews(20, GROUPS, (7, 2, 9, 4, 1), new_pool())
    assert views.blocks_of(0, 20) == (7, 2, 9, 4, 1)
    assert views.blocks_of(4, 8) == (2,)
    assert views.blocks_of(7, 9) == (2, 9)
