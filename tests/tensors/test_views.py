"""Each view shows exactly the bytes that the layout names, and nothing behind the committed tokens."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvcluster.geometry.layout import Layout, Side, group_layouts
from kvcluster.geometry.model import KvGeometry, LayerGroup
from kvcluster.geometry.residency import RangeMap, Shape
from kvcluster.tensors.views import KvViews, kv_views

GRANULE_BYTES = 64


def numbered(range_map: RangeMap) -> torch.Tensor:
    """A range whose every 4-byte element holds its own index."""
    return torch.arange(range_map.size_bytes // 4, dtype=torch.int32)


def views_of(memory: torch.Tensor, range_map: RangeMap, geometry: KvGeometry, layout: Layout, tokens: int) -> KvViews:
    return kv_views(memory.data_ptr(), range_map, geometry, layout, tokens=tokens, dtype=torch.int32)


groups = st.builds(
    lambda order, cut, heads, dims: tuple(
        LayerGroup(tuple(sorted(part)), heads[i], dims[i]) for i, part in enumerate((order[:cut], order[cut:])) if part
    ),
    st.permutations(range(5)),
    st.integers(0, 5),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(1, 7), st.integers(1, 7)),
)


@given(groups, st.sampled_from(Layout), st.integers(1, 40), st.data())
def test_every_vector_lies_where_the_layout_places_it(
    groups: tuple[LayerGroup, ...], layout: Layout, max_tokens: int, data: st.DataObject
) -> None:
    tokens = data.draw(st.integers(1, max_tokens))
    geometry = KvGeometry(groups, 4)
    range_map = RangeMap(Shape.of(geometry, layout, GRANULE_BYTES), max_tokens)
    memory = numbered(range_map)
    views = views_of(memory, range_map, geometry, layout, tokens)
    for number, group in enumerate(group_layouts(geometry, layout)):
        shape = group.group
        for (index, layer), side, head in itertools.product(enumerate(shape.layers), Side, range(shape.kv_heads)):
            place = group.place(index, side, head)
            start = range_map.fragment_offset_bytes(number, place.fragment) + place.offset_bytes
            view = (views.k if side is Side.K else views.v)[layer]
            assert view.shape == (shape.kv_heads, tokens, shape.head_dim)
            wanted = [[(start + t * group.stride_bytes) // 4 + i for i in range(shape.head_dim)] for t in range(tokens)]
            assert view[head].tolist() == wanted


@pytest.mark.parametrize("layout", Layout)
def test_what_is_written_through_a_view_stands_in_the_memory(layout: Layout) -> None:
    geometry = KvGeometry.uniform(layers=3, kv_heads=2, head_dim=5, element_bytes=4)
    range_map = RangeMap(Shape.of(geometry, layout, GRANULE_BYTES), 10)
    memory = torch.zeros(range_map.size_bytes // 4, dtype=torch.int32)
    views_of(memory, range_map, geometry, layout, 7).v[1][1, 6] = 1
    assert memory.sum() == 5
    assert views_of(memory, range_map, geometry, layout, 10).v[1][1, 6].tolist() == [1] * 5


def test_a_stride_that_does_not_divide_the_granule_leaves_no_gap() -> None:
    geometry = KvGeometry.uniform(layers=1, kv_heads=1, head_dim=3, element_bytes=4)
    range_map = RangeMap(Shape.of(geometry, Layout.TOKEN_MAJOR, GRANULE_BYTES), 9)
    assert GRANULE_BYTES % geometry.token_bytes
    memory = numbered(range_map)
    views = views_of(memory, range_map, geometry, Layout.TOKEN_MAJOR, 9)
    together = torch.cat((views.k[0][0], views.v[0][0]), dim=1)
    assert together.flatten().tolist() == list(range(9 * 6))


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 9)])
def test_views_of_tokens_outside_are_refused(start: int, stop: int) -> None:
    geometry = KvGeometry.uniform(layers=1, kv_heads=1, head_dim=2, element_bytes=4)
    range_map = RangeMap(Shape.of(geometry, Layout.SEQ_MAJOR, GRANULE_BYTES), 8)
    views = views_of(numbered(range_map), range_map, geometry, Layout.SEQ_MAJOR, 8)
    with pytest.raises(ValueError, match="do not lie in 8"):
        views.narrowed(start, stop)


def test_narrowed_views_share_the_memory() -> None:
    geometry = KvGeometry.uniform(layers=2, kv_heads=1, head_dim=2, element_bytes=4)
    range_map = RangeMap(Shape.of(geometry, Layout.SEQ_MAJOR, GRANULE_BYTES), 8)
    views = views_of(numbered(range_map), range_map, geometry, Layout.SEQ_MAJOR, 8)
    narrowed = views.narrowed(2, 5)
    assert narrowed.tokens == 3
    assert narrowed.k[1].data_ptr() == views.k[1][:, 2:].data_ptr()
    assert torch.equal(narrowed.v[0], views.v[0][:, 2:5])


@pytest.mark.parametrize("tokens", [-1, 11])
def test_more_tokens_than_the_range_holds_are_refused(tokens: int) -> None:
    geometry = KvGeometry.uniform(layers=1, kv_heads=1, head_dim=4, element_bytes=4)
    range_map = RangeMap(Shape.of(geometry, Layout.TOKEN_MAJOR, GRANULE_BYTES), 10)
    with pytest.raises(ValueError, match="do not lie in a range of 10"):
        views_of(numbered(range_map), range_map, geometry, Layout.TOKEN_MAJOR, tokens)


def test_an_element_type_of_another_size_is_refused() -> None:
    geometry = KvGeometry.uniform(layers=1, kv_heads=1, head_dim=4, element_bytes=4)
    range_map = RangeMap(Shape.of(geometry, Layout.TOKEN_MAJOR, GRANULE_BYTES), 10)
    memory = numbered(range_map)
    with pytest.raises(ValueError, match="bfloat16 has 2 bytes"):
        kv_views(memory.data_ptr(), range_map, geometry, Layout.TOKEN_MAJOR, tokens=1, dtype=torch.bfloat16)
