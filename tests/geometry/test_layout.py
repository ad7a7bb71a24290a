"""The three layouts are bijections: every vector has a place of its own, and no byte of a row is left over."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcluster.geometry.layout import GroupLayout, Layout, Place, Side, group_layouts
from kvcluster.geometry.model import KvGeometry, LayerGroup
from tests.geometry.brute_force import LAYOUTS, geometries, vector_places

GROUP = LayerGroup(layers=(0, 3), kv_heads=2, head_dim=4)


@given(geometries(), LAYOUTS)
def test_the_vectors_of_a_token_tile_each_row_without_gap_or_overlap(geometry: KvGeometry, layout: Layout) -> None:
    for group in group_layouts(geometry, layout):
        bytes_of_row = Counter((fragment, byte) for fragment, row in vector_places(group) for byte in row)
        assert set(bytes_of_row.values()) == {1}
        assert bytes_of_row.keys() == {(f, b) for f in range(group.fragments) for b in range(group.stride_bytes)}


@given(geometries(), LAYOUTS)
def test_every_layout_keeps_the_same_bytes_a_token(geometry: KvGeometry, layout: Layout) -> None:
    assert sum(g.fragments * g.stride_bytes for g in group_layouts(geometry, layout)) == geometry.token_bytes


@given(geometries(windows=True), LAYOUTS)
def test_group_layouts_keep_the_order_of_the_groups(geometry: KvGeometry, layout: Layout) -> None:
    assert tuple(g.group for g in group_layouts(geometry, layout)) == geometry.groups


@pytest.mark.parametrize(
    ("layout", "fragments", "stride_bytes", "place"),
    [
        (Layout.TOKEN_MAJOR, 1, 64, Place(0, 56)),
        (Layout.SEQ_MAJOR, 4, 16, Place(3, 8)),
        (Layout.HEAD_MAJOR, 8, 8, Place(7, 0)),
    ],
)
def test_the_last_vector_of_two_layers_and_two_heads_lies_where_the_table_says(
    layout: Layout, fragments: int, stride_bytes: int, place: Place
) -> None:
    group = GroupLayout(GROUP, layout, element_bytes=2)
    assert (group.fragments, group.stride_bytes) == (fragments, stride_bytes)
    assert group.place(1, Side.V, 1) == place


@pytest.mark.parametrize(("layer", "head"), [(-1, 0), (2, 0), (0, -1), (0, 2)])
@pytest.mark.parametrize("layout", Layout)
def test_a_layer_or_head_outside_the_group_is_refused(layout: Layout, layer: int, head: int) -> None:
    with pytest.raises(ValueError, match="2 layers and 2 heads"):
        GroupLayout(GROUP, layout, element_bytes=2).place(layer, Side.K, head)


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 256))
def test_k_lies_before_v_in_token_major(layers: int, heads: int, head_dim: int) -> None:
    group = GroupLayout(LayerGroup(tuple(range(layers)), heads, head_dim), Layout.TOKEN_MAJOR, 2)
    keys, values = group.place(0, Side.K, 0), group.place(0, Side.V, 0)
    assert values.offset_bytes - keys.offset_bytes == heads * head_dim * 2
