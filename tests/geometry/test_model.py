"""What a model keeps: groups that cover each layer once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcluster.geometry.layout import Layout, group_layouts
from kvcluster.geometry.model import KvGeometry, LayerGroup
from tests.geometry.brute_force import LAYOUTS, bytes_of, geometries


def test_a_uniform_model_of_an_eight_billion_parameters_class_keeps_128_kib_a_token() -> None:
    assert KvGeometry.uniform(layers=32, kv_heads=8, head_dim=128, element_bytes=2).token_bytes == 128 * 1024


def test_gemma3_270m_keeps_18_kib_a_token_over_both_groups() -> None:
    full = (5, 11, 17)
    sliding = tuple(layer for layer in range(18) if layer not in full)
    geometry = KvGeometry((LayerGroup(full, 1, 256), LayerGroup(sliding, 1, 256, window_tokens=512)), 2)
    assert geometry.token_bytes == 18_432


@given(geometries(windows=True), LAYOUTS, st.integers(0, 30))
def test_live_bytes_are_those_of_the_tokens_that_each_layer_may_still_see(
    geometry: KvGeometry, layout: Layout, tokens: int
) -> None:
    live = 0
    for group in group_layouts(geometry, layout):
        first = max(0, tokens - (group.group.window_tokens or tokens))
        live += sum(len(occupied) for occupied in bytes_of(group, range(first, tokens)))
    assert geometry.live_bytes(tokens) == live


@pytest.mark.parametrize(
    ("layers", "kv_heads", "head_dim", "window_tokens"),
    [
        ((), 1, 1, None),
        ((0,), 0, 1, None),
        ((0,), 1, 0, None),
        ((0,), 1, 1, 0),
        ((1, 0), 1, 1, None),
        ((-1,), 1, 1, None),
    ],
)
def test_a_group_without_layers_heads_or_order_is_refused(
    layers: tuple[int, ...], kv_heads: int, head_dim: int, window_tokens: int | None
) -> None:
    with pytest.raises(ValueError, match="not"):
        LayerGroup(layers, kv_heads, head_dim, window_tokens)


def test_a_layer_in_two_groups_is_refused() -> None:
    with pytest.raises(ValueError, match="exactly one group"):
        KvGeometry((LayerGroup((0, 1), 1, 1), LayerGroup((1,), 1, 1)), 2)


def test_a_geometry_without_groups_is_refused() -> None:
    with pytest.raises(ValueError, match="exactly one group"):
        KvGeometry((), 2)


def test_an_element_without_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 byte"):
        KvGeometry.uniform(layers=1, kv_heads=1, head_dim=1, element_bytes=0)
