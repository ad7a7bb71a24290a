"""Shareability in closed form equals a count over real offsets, and the published figures come out."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcluster.geometry.layout import GroupLayout, Layout, group_layouts
from kvcluster.geometry.model import KvGeometry, LayerGroup
from kvcluster.geometry.residency import Shape
from kvcluster.geometry.shareability import (
    Backing,
    Refusal,
    evaluate_shareability,
    no_boundary_reason,
    shareability_of,
)
from kvcluster.units import KIB, MIB
from tests.geometry.brute_force import GRANULES, LAYOUTS, bytes_of, geometries, granules_filled, granules_touched

PREFIX_TOKENS = st.integers(1, 20)
LARGE = KvGeometry.uniform(layers=48, kv_heads=8, head_dim=128, element_bytes=2)


def _filled(group: GroupLayout, tokens: int, granule_bytes: int) -> list[set[int]]:
    """Of each fragment, the granules in which every byte belongs to the prefix."""
    return [granules_filled(occupied, granule_bytes) for occupied in bytes_of(group, range(tokens))]


def _tokens_readable(group: GroupLayout, filled: list[set[int]], granule_bytes: int, tokens: int) -> int:
    """The first tokens, all of whose bytes lie in filled granules."""
    for token in range(tokens):
        rows = bytes_of(group, range(token, token + 1))
        if any(granules_touched(row, granule_bytes) - whole for row, whole in zip(rows, filled, strict=True)):
            return token
    return tokens


@given(geometries(windows=True), LAYOUTS, PREFIX_TOKENS, GRANULES)
def test_the_closed_form_equals_a_count_over_real_offsets(
    geometry: KvGeometry, layout: Layout, prefix_tokens: int, granule_bytes: int
) -> None:
    groups = [g for g in group_layouts(geometry, layout) if g.group.window_tokens is None]
    filled = [_filled(g, prefix_tokens, granule_bytes) for g in groups]
    counts = [len(granules) for fragments in filled for granules in fragments]
    shareable = bool(counts) and min(counts) > 0
    readable = (_tokens_readable(g, f, granule_bytes, prefix_tokens) for g, f in zip(groups, filled, strict=True))

    found = evaluate_shareability(geometry, layout, prefix_tokens, granule_bytes)

    assert found.shareable == shareable
    assert found.fragments == len(counts)
    assert found.shareable_granules_per_fragment == min(counts, default=0)
    assert found.multi_map_ops == (sum(counts) if shareable else 0)
    assert found.reusable_tokens == (min(prefix_tokens - 1, *readable) if shareable else 0)


@given(geometries(), LAYOUTS, PREFIX_TOKENS, GRANULES)
def test_a_refusal_has_a_whole_sentence_and_a_shareable_prefix_has_none(
    geometry: KvGeometry, layout: Layout, prefix_tokens: int, granule_bytes: int
) -> None:
    found = evaluate_shareability(geometry, layout, prefix_tokens, granule_bytes)
    assert found.shareable == (found.fragment_bytes >= granule_bytes)
    assert found.shareable == (found.refusal_reason is None) == (found.refusal is None)
    assert found.shareable or str(found.refusal_reason).endswith(" tokens on one does.")


@given(geometries(windows=True), LAYOUTS, PREFIX_TOKENS, GRANULES)
def test_a_longer_prefix_never_shares_less(
    geometry: KvGeometry, layout: Layout, prefix_tokens: int, granule_bytes: int
) -> None:
    shorter = evaluate_shareability(geometry, layout, prefix_tokens, granule_bytes)
    longer = evaluate_shareability(geometry, layout, prefix_tokens + 1, granule_bytes)
    assert longer.multi_map_ops >= shorter.multi_map_ops
    assert longer.reusable_tokens >= shorter.reusable_tokens


@pytest.mark.parametrize(
    ("layout", "refused_tokens", "fragments", "reusable_tokens"),
    [
        (Layout.HEAD_MAJOR, 8_191, 768, 8_191),
        (Layout.SEQ_MAJOR, 1_023, 96, 1_023),
        (Layout.TOKEN_MAJOR, 10, 1, 10),
    ],
)
def test_forty_eight_layers_share_from_one_token_more_than_the_last_refused_length(
    layout: Layout, refused_tokens: int, fragments: int, reusable_tokens: int
) -> None:
    refused = evaluate_shareability(LARGE, layout, refused_tokens, 2 * MIB)
    shared = evaluate_shareability(LARGE, layout, refused_tokens + 1, 2 * MIB)
    assert (refused.shareable, shared.shareable) == (False, True)
    assert (refused.fragments, shared.fragments) == (fragments, fragments)
    assert (shared.shareable_granules_per_fragment, shared.multi_map_ops) == (1, fragments)
    assert (refused.reusable_tokens, shared.reusable_tokens) == (0, reusable_tokens)


def test_the_refusal_names_the_tokens_and_both_sizes() -> None:
    reason = evaluate_shareability(LARGE, Layout.TOKEN_MAJOR, 10, 2 * MIB).refusal_reason
    assert reason == (
        "The prefix cannot be shared: its 10 tokens fill 1,966,080 bytes of a fragment and one granule is 2,097,152 "
        "bytes, so no whole granule lies inside the prefix (fragment_bytes < granule); from 11 tokens on one does."
    )


@given(geometries(), LAYOUTS, PREFIX_TOKENS, GRANULES)
def test_a_prefix_that_is_too_short_names_the_shortest_that_is_not(
    geometry: KvGeometry, layout: Layout, prefix_tokens: int, granule_bytes: int
) -> None:
    found = evaluate_shareability(geometry, layout, prefix_tokens, granule_bytes)
    if found.refusal_reason:
        [named] = re.findall(r"from ([\d,]+) tokens on", found.refusal_reason)
        enough = int(named.replace(",", ""))
        assert prefix_tokens < enough
        assert evaluate_shareability(geometry, layout, enough, granule_bytes).shareable
        assert not evaluate_shareability(geometry, layout, enough - 1, granule_bytes).shareable


@given(geometries(windows=True), LAYOUTS, PREFIX_TOKENS, GRANULES)
def test_plain_memory_is_refused_for_that_reason_whatever_the_arithmetic_says(
    geometry: KvGeometry, layout: Layout, prefix_tokens: int, granule_bytes: int
) -> None:
    found = evaluate_shareability(geometry, layout, prefix_tokens, granule_bytes, backing=Backing.PLAIN)
    assert (found.shareable, found.refusal) == (False, Refusal.NOT_VMM_BACKED)
    assert (found.multi_map_ops, found.reusable_tokens) == (0, 0)
    assert str(found.refusal_reason).endswith("(not VMM-backed).")
    assert "kvcluster.open_device" in str(found.refusal_reason)


@given(geometries(windows=True), LAYOUTS, PREFIX_TOKENS, GRANULES)
def test_a_device_that_knows_the_shape_alone_comes_to_the_same_answer(
    geometry: KvGeometry, layout: Layout, prefix_tokens: int, granule_bytes: int
) -> None:
    for chunk_tokens in (1, 256):
        shape = Shape.of(geometry, layout, granule_bytes, chunk_tokens=chunk_tokens)
        found = evaluate_shareability(geometry, layout, prefix_tokens, granule_bytes)
        assert shareability_of(shape, prefix_tokens) == found


def test_a_join_inside_the_boundary_is_refused_with_both_lengths() -> None:
    assert no_boundary_reason(900, 1_020) == (
        "The prefix cannot be shared by a prompt that is equal for 900 tokens: its sliding windows can be taken over "
        "only after its first 1,020 tokens, where a snapshot of them was made, and one token more must be equal; "
        "publish a boundary further to the front."
    )


def test_a_prefix_that_ends_on_a_granule_still_leaves_its_last_token_to_compute() -> None:
    geometry = KvGeometry.uniform(layers=1, kv_heads=1, head_dim=16, element_bytes=2)  # 64 bytes a token
    found = evaluate_shareability(geometry, Layout.TOKEN_MAJOR, 64, 4 * KIB)
    assert (found.shareable_granules_per_fragment, found.reusable_tokens) == (1, 63)


def test_one_token_that_fills_a_granule_is_shareable_and_saves_nothing() -> None:
    geometry = KvGeometry.uniform(layers=1, kv_heads=1, head_dim=1024, element_bytes=2)
    found = evaluate_shareability(geometry, Layout.TOKEN_MAJOR, 1, 4 * KIB)
    assert (found.shareable, found.reusable_tokens) == (True, 0)


def test_the_group_with_the_smallest_fragment_decides() -> None:
    wide, narrow = LayerGroup((0,), 1, 32), LayerGroup((1,), 1, 16)  # 128 and 64 bytes a token in two-byte elements
    geometry = KvGeometry((wide, narrow), 2)
    refused = evaluate_shareability(geometry, Layout.TOKEN_MAJOR, 63, 4 * KIB)
    shared = evaluate_shareability(geometry, Layout.TOKEN_MAJOR, 70, 4 * KIB)
    assert (refused.shareable, refused.fragment_bytes, refused.multi_map_ops) == (False, 63 * 64, 0)
    assert (shared.multi_map_ops, shared.reusable_tokens) == (2 + 1, 64)


def test_a_model_with_rings_only_is_refused_for_that_reason() -> None:
    found = evaluate_shareability(
        KvGeometry((LayerGroup((0, 1), 1, 64, window_tokens=512),), 2), Layout.TOKEN_MAJOR, 4_096, 4 * KIB
    )
    assert (found.fragments, found.fragment_bytes, found.multi_map_ops) == (0, 0, 0)
    assert found.refusal is Refusal.SLIDING_ONLY
    assert "sliding window only" in str(found.refusal_reason)


@pytest.mark.parametrize(("prefix_tokens", "granule_bytes"), [(0, 4096), (-1, 4096), (1, 0)])
def test_an_empty_prefix_or_granule_is_wrong_use(prefix_tokens: int, granule_bytes: int) -> None:
    with pytest.raises(ValueError, match=r"at least 1 (token|group and a granule)"):
        evaluate_shareability(LARGE, Layout.TOKEN_MAJOR, prefix_tokens, granule_bytes)
