"""Rows of a ring lie at their token's offset modulo the ring, in one piece; snapshots keep them for others."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcluster.geometry.layout import Layout
from kvcluster.geometry.model import KvGeometry, LayerGroup
from kvcluster.geometry.residency import RangeMap, Shape
from kvcluster.mapping.address_range import AddressRange
from kvcluster.tensors.snapshots import copy_from_snapshot, copy_to_snapshot, snapshot_is_possible
from kvcluster.tensors.views import GroupView, KvViews, kv_views
from tests.examples import examples
from tests.tensors.ranges import PAGE, elements, geometries, mapped

MAX_TOKENS = 60
slow = settings(deadline=None, max_examples=examples(40))
LAYOUTS = st.sampled_from(Layout)
CHUNKS = st.integers(1, 5)
SLIDING = geometries(st.just(True))
SOME_SLIDING = geometries(st.booleans())


def range_of(geometry: KvGeometry, layout: Layout, chunk_tokens: int) -> RangeMap:
    return RangeMap(Shape.of(geometry, layout, PAGE, chunk_tokens=chunk_tokens), MAX_TOKENS)


def views_of(address_range: AddressRange, geometry: KvGeometry, layout: Layout) -> KvViews:
    return kv_views(
        address_range.address, address_range.range_map, geometry, layout, tokens=MAX_TOKENS, dtype=torch.int32
    )


def written(group: GroupView, first: int, stop: int) -> torch.Tensor:
    """What `write` puts into the rows of tokens [first, stop): different for every element of every token."""
    layers, sides, heads, dim = group.rows.sizes
    size = (layers, sides, heads, stop - first, dim)
    within = torch.arange(layers * sides * heads * dim, dtype=torch.int32).view(layers, sides, heads, 1, dim)
    return (within + 1_000_000 * torch.arange(first, stop, dtype=torch.int32)[:, None]).expand(size)


def write(views: KvViews, first: int, stop: int) -> None:
    for group in views.groups:
        group.narrowed(first, stop).block.copy_(written(group, first, stop))


@slow
@given(SOME_SLIDING, LAYOUTS, CHUNKS, st.data())
def test_while_chunks_are_written_every_group_shows_the_window_before_each(
    geometry: KvGeometry, layout: Layout, chunk_tokens: int, data: st.DataObject
) -> None:
    with mapped(range_of(geometry, layout, chunk_tokens)) as address_range:
        views, start = views_of(address_range, geometry, layout), 0
        while start < MAX_TOKENS:
            stop = min(MAX_TOKENS, start + data.draw(st.integers(1, chunk_tokens)))
            write(views, start, stop)
            for group in views.groups:
                first = 0 if group.window_tokens is None else max(0, start + 1 - group.window_tokens)
                assert torch.equal(group.narrowed(first, stop).block, written(group, first, stop))
            start = stop


@slow
@given(SLIDING, LAYOUTS, CHUNKS)
def test_a_group_gives_as_many_tokens_as_its_ring_holds_and_no_more(
    geometry: KvGeometry, layout: Layout, chunk_tokens: int
) -> None:
    with mapped(range_of(geometry, layout, chunk_tokens)) as address_range:
        for number, group in enumerate(views_of(address_range, geometry, layout).groups):
            holds = address_range.range_map.ring_bytes(number) // (4 * group.rows.stride)
            assert group.narrowed(0, min(holds, MAX_TOKENS)).block.shape[3] == min(holds, MAX_TOKENS)
            if holds < MAX_TOKENS:
                with pytest.raises(ValueError, match=f"holds {holds} tokens, not {holds + 1}"):
                    _ = group.narrowed(0, holds + 1).block


def test_all_tokens_of_a_model_with_a_ring_cannot_be_seen_at_once() -> None:
    geometry = KvGeometry((LayerGroup((0,), 1, 64), LayerGroup((1,), 1, 64, window_tokens=4)), 4)
    with mapped(range_of(geometry, Layout.TOKEN_MAJOR, 2)) as address_range:
        views = views_of(address_range, geometry, Layout.TOKEN_MAJOR)
        with pytest.raises(ValueError, match="tokens 0 to 60 do not lie in a ring at once: it holds 8 tokens, not 60"):
            _ = views.k
        assert [k.shape for k in views.narrowed(50, 58).k] == [(1, 8, 64)] * 2


@slow
@given(SOME_SLIDING, LAYOUTS, CHUNKS, st.data())
def test_a_snapshot_brings_the_window_before_its_boundary_into_another_ring(
    geometry: KvGeometry, layout: Layout, chunk_tokens: int, data: st.DataObject
) -> None:
    range_map = range_of(geometry, layout, chunk_tokens)
    boundary = data.draw(st.integers(1, MAX_TOKENS))
    behind = data.draw(st.integers(0, min(chunk_tokens - 1, MAX_TOKENS - boundary)))
    with mapped(range_map) as owner, mapped(range_map) as joiner:
        views = views_of(owner, geometry, layout)
        for token in range(boundary + behind):
            write(views, token, token + 1)
        copy_to_snapshot(owner.address, range_map, geometry, tokens=boundary, written=boundary + behind)
        for _, snapshot in range_map.shape.snapshots():
            start = range_map.fragment_offset_bytes(snapshot, 0) // 4
            size = range_map.shape.groups[snapshot].fragments * range_map.fragment_pitch_bytes(snapshot) // 4
            elements(joiner)[start : start + size] = elements(owner)[start : start + size]
        copy_from_snapshot(joiner.address, range_map, geometry, tokens=boundary)
        for group in views_of(joiner, geometry, layout).groups:
            if group.window_tokens is not None:
                first = max(0, boundary - group.window_tokens)
                assert torch.equal(group.narrowed(first, boundary).block, written(group, first, boundary))


@slow
@given(SLIDING, LAYOUTS, CHUNKS, st.data())
def test_a_snapshot_of_what_was_overwritten_or_is_not_written_is_refused_and_copies_nothing(
    geometry: KvGeometry, layout: Layout, chunk_tokens: int, data: st.DataObject
) -> None:
    range_map = range_of(geometry, layout, chunk_tokens)
    boundary = data.draw(st.integers(1, MAX_TOKENS))
    seen = data.draw(st.integers(0, MAX_TOKENS))
    with mapped(range_map) as owner:
        views = views_of(owner, geometry, layout)
        for token in range(seen):
            write(views, token, token + 1)
        is_there = seen >= boundary and all(
            group.rows.ring >= (seen - max(0, boundary - (group.window_tokens or 0))) * group.rows.stride
            for group in views.groups
        )
        assert snapshot_is_possible(range_map, geometry, tokens=boundary, written=seen) == is_there
        if not is_there:
            before = elements(owner).clone()
            with pytest.raises(ValueError, match=f"the window before token {boundary} is not in the ring"):
                copy_to_snapshot(owner.address, range_map, geometry, tokens=boundary, written=seen)
            assert torch.equal(elements(owner), before)
