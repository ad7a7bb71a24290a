"""Rows that move between ranges, rings among them, and pages are those that were there."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcluster.geometry.layout import Layout
from kvcluster.geometry.model import KvGeometry, LayerGroup
from kvcluster.geometry.residency import RangeMap, Shape
from kvcluster.tensors.moving import copy_from_pages, copy_to_pages
from kvcluster.tensors.paged_views import PagedViews
from kvcluster.tensors.views import KvViews, kv_views
from tests.examples import examples
from tests.tensors.ranges import PAGE, mapped

TOKENS, HEADS, DIM, CHUNK = 40, 2, 48, 4


def geometry(window: int | None) -> KvGeometry:
    """Three layers; with a window, two of them slide."""
    if window is None:
        return KvGeometry((LayerGroup((0, 1, 2), HEADS, DIM, None),), element_bytes=4)
    return KvGeometry((LayerGroup((1,), HEADS, DIM, None), LayerGroup((0, 2), HEADS, DIM, window)), element_bytes=4)


def pages_of(shape: KvGeometry, draw: torch.Generator, block_size: int) -> PagedViews:
    blocks = -(-TOKENS // block_size)
    pool = torch.randn(blocks + 5, 2, 3, HEADS, block_size, DIM, generator=draw)
    table = tuple(torch.randperm(blocks + 5, generator=draw)[:blocks].tolist())
    return PagedViews(TOKENS, shape.groups, table, pool)


def row(pages: PagedViews, layer: int, token: int) -> torch.Tensor:
    """[2 (K, V), heads, dim]"""
    entry, offset = divmod(token, pages.block_size)
    return pages.pool[pages.table[entry], :, layer, :, offset]


def ranged(views: KvViews, layer: int, token: int) -> torch.Tensor:
    group = next(group for group in views.groups if layer in group.layers)
    return group.rows.block(token, 1)[group.layers.index(layer), :, :, 0]


@given(
    tokens=st.integers(1, TOKENS),
    window=st.none() | st.integers(1, 9),
    block_size=st.sampled_from([1, 3, 16]),
    layout=st.sampled_from(list(Layout)),
)
@settings(deadline=None, max_examples=examples(60))
def test_what_goes_to_a_range_and_back_to_other_pages_is_what_was_there(
    tokens: int, window: int | None, block_size: int, layout: Layout
) -> None:
    shape, draw = geometry(window), torch.Generator().manual_seed(tokens)
    source, target = pages_of(shape, draw, block_size), pages_of(shape, draw, 4)
    range_map = RangeMap(Shape.of(shape, layout, PAGE, chunk_tokens=CHUNK), TOKENS)
    with mapped(range_map) as memory:
        views = kv_views(memory.address, range_map, shape, layout, tokens=TOKENS, dtype=torch.float32)
        copy_from_pages(source, views, tokens)
        is_whole = copy_to_pages(views, target, tokens)
        for group in shape.groups:
            first = 0 if group.window_tokens is None else max(0, tokens - group.window_tokens)
            for layer in group.layers:
                for token in range(first, tokens):
                    assert torch.equal(ranged(views, layer, token), row(source, layer, token))
                    assert torch.equal(row(target, layer, token), row(source, layer, token))
        has_rings = any(group.rows.ring for group in views.groups)
        assert is_whole == (not has_rings or window is None or tokens <= window)
        del views


def test_more_tokens_than_either_has_are_refused() -> None:
    shape = geometry(None)
    pages = pages_of(shape, torch.Generator().manual_seed(1), 4)
    range_map = RangeMap(Shape.of(shape, Layout.TOKEN_MAJOR, PAGE), TOKENS)
    with mapped(range_map) as memory:
        views = kv_views(memory.address, range_map, shape, Layout.TOKEN_MAJOR, tokens=8, dtype=torch.float32)
        with pytest.raises(ValueError, match="9 tokens do not lie in 8"):
            copy_from_pages(pages, views, 9)
        del views
