"""Residency in closed form equals a count of granules over every byte of every token."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcluster.geometry.layout import Layout, group_layouts
from kvcluster.geometry.model import KvGeometry
from kvcluster.geometry.residency import GroupShape, RangeMap, Shape
from kvcluster.ids import WindowRun
from kvcluster.units import KIB, MIB
from tests.geometry.brute_force import GRANULES, LAYOUTS, bytes_of, geometries, granules_filled, granules_touched

TOKENS = st.integers(0, 20)
SHAPES = st.builds(
    Shape,
    st.lists(st.builds(GroupShape, st.integers(1, 4), st.integers(1, 40)), min_size=1, max_size=3).map(tuple),
    st.integers(1, 64),
)


@given(geometries(), LAYOUTS, GRANULES, TOKENS)
def test_windows_are_the_granules_that_hold_a_live_byte(
    geometry: KvGeometry, layout: Layout, granule_bytes: int, tokens: int
) -> None:
    windows = Shape.of(geometry, layout, granule_bytes).windows(tokens)
    for group, count in zip(group_layouts(geometry, layout), windows, strict=True):
        for occupied in bytes_of(group, range(tokens)):
            assert granules_touched(occupied, granule_bytes) == set(range(count))


@given(geometries(), LAYOUTS, GRANULES, TOKENS)
def test_whole_windows_are_the_granules_without_a_free_byte(
    geometry: KvGeometry, layout: Layout, granule_bytes: int, tokens: int
) -> None:
    windows = Shape.of(geometry, layout, granule_bytes).whole_windows(tokens)
    for group, count in zip(group_layouts(geometry, layout), windows, strict=True):
        for occupied in bytes_of(group, range(tokens)):
            assert granules_filled(occupied, granule_bytes) == set(range(count))


@given(geometries(), LAYOUTS, GRANULES, TOKENS)
def test_committed_bytes_are_a_granule_for_each_window_of_each_fragment(
    geometry: KvGeometry, layout: Layout, granule_bytes: int, tokens: int
) -> None:
    touched = (
        len(granules_touched(occupied, granule_bytes))
        for group in group_layouts(geometry, layout)
        for occupied in bytes_of(group, range(tokens))
    )
    assert Shape.of(geometry, layout, granule_bytes).committed_bytes(tokens) == granule_bytes * sum(touched)


@given(geometries(), LAYOUTS, GRANULES, TOKENS)
def test_live_bytes_are_the_bytes_that_tokens_occupy(
    geometry: KvGeometry, layout: Layout, granule_bytes: int, tokens: int
) -> None:
    occupied = (o for group in group_layouts(geometry, layout) for o in bytes_of(group, range(tokens)))
    assert Shape.of(geometry, layout, granule_bytes).live_bytes(tokens) == sum(len(o) for o in occupied)


@given(SHAPES, st.data())
def test_tokens_in_is_the_most_tokens_that_need_no_further_window(shape: Shape, data: st.DataObject) -> None:
    windows = tuple(data.draw(st.integers(0, 8)) for _ in shape.groups)
    tokens = shape.tokens_in(windows)
    assert all(need <= have for need, have in zip(shape.windows(tokens), windows, strict=True))
    assert any(need > have for need, have in zip(shape.windows(tokens + 1), windows, strict=True))


@given(SHAPES, TOKENS, TOKENS)
def test_the_runs_between_two_lengths_are_exactly_the_missing_windows(shape: Shape, one: int, other: int) -> None:
    have, want = shape.windows(min(one, other)), shape.windows(max(one, other))
    named = [
        (run.group, run.fragment, window)
        for run in shape.runs(have, want)
        for window in range(run.start, run.start + run.count)
    ]
    missing = [
        (number, fragment, window)
        for number, group in enumerate(shape.groups)
        for fragment in range(group.fragments)
        for window in range(have[number], want[number])
    ]
    assert named == missing
    assert len(missing) == shape.window_count(want) - shape.window_count(have)


@given(SHAPES, TOKENS)
def test_nothing_is_missing_between_a_length_and_itself_or_less(shape: Shape, tokens: int) -> None:
    assert list(shape.runs(shape.windows(tokens), shape.windows(tokens))) == []
    assert list(shape.runs(shape.windows(tokens), shape.windows(0))) == []


@given(SHAPES, st.integers(1, 20))
def test_the_windows_of_a_range_fill_it_without_gap_or_overlap(shape: Shape, max_tokens: int) -> None:
    whole = RangeMap(shape, max_tokens)
    places = [
        whole.run_offset_bytes(WindowRun(run.group, run.fragment, window, 1))
        for run in shape.runs(shape.windows(0), shape.windows(max_tokens))
        for window in range(run.count)
    ]
    assert sorted(places) == list(range(0, whole.size_bytes, shape.granule_bytes))


@given(SHAPES, st.integers(1, 20), st.data())
def test_a_runs_windows_are_adjacent_from_its_offset(shape: Shape, max_tokens: int, data: st.DataObject) -> None:
    whole = RangeMap(shape, max_tokens)
    run = data.draw(st.sampled_from(list(shape.runs(shape.windows(0), shape.windows(max_tokens)))))
    start = whole.run_offset_bytes(run)
    assert start == whole.fragment_offset_bytes(run.group, run.fragment)
    assert start + run.count * shape.granule_bytes <= start + whole.fragment_pitch_bytes(run.group)


@pytest.mark.parametrize(
    "run",
    [
        WindowRun(-1, 0, 0, 1),
        WindowRun(1, 0, 0, 1),
        WindowRun(0, -1, 0, 1),
        WindowRun(0, 2, 0, 1),
        WindowRun(0, 0, -1, 1),
        WindowRun(0, 0, 0, 0),
        WindowRun(0, 0, 0, -1),
        WindowRun(0, 0, 4, 1),
        WindowRun(0, 0, 1, 4),
    ],
)
def test_a_run_outside_the_range_is_refused_and_never_a_neighbours_address(run: WindowRun) -> None:
    whole = RangeMap(Shape((GroupShape(2, 10),), 16), max_tokens=6)  # 60 bytes: 4 windows in each of 2 fragments
    with pytest.raises(ValueError, match="does not lie in a range of 6 tokens"):
        whole.run_offset_bytes(run)


def test_a_long_context_of_the_first_case_reserves_8192_granules_of_4_kib() -> None:
    geometry = KvGeometry.uniform(layers=2, kv_heads=1, head_dim=16, element_bytes=4)
    shape = Shape.of(geometry, Layout.TOKEN_MAJOR, 4 * KIB)
    assert RangeMap(shape, 131_072).size_bytes == 8_192 * 4 * KIB
    assert shape.committed_bytes(200) == 13 * 4 * KIB


def test_token_major_commits_sixteen_tokens_of_an_eight_billion_parameters_model_at_a_time() -> None:
    geometry = KvGeometry.uniform(layers=32, kv_heads=8, head_dim=128, element_bytes=2)
    committed = {layout: Shape.of(geometry, layout, 2 * MIB).committed_bytes(16) for layout in Layout}
    assert committed == {
        Layout.TOKEN_MAJOR: 2 * MIB,
        Layout.SEQ_MAJOR: 64 * 2 * MIB,
        Layout.HEAD_MAJOR: 512 * 2 * MIB,
    }


@pytest.mark.parametrize(("fragments", "stride_bytes"), [(0, 1), (1, 0), (-1, 1)])
def test_a_group_without_fragments_or_bytes_is_refused(fragments: int, stride_bytes: int) -> None:
    with pytest.raises(ValueError, match="at least 1 fragment"):
        GroupShape(fragments, stride_bytes)


def test_a_shape_without_groups_or_granule_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 group"):
        Shape((), 4096)
    with pytest.raises(ValueError, match="a granule"):
        Shape((GroupShape(1, 1),), 0)


def test_a_range_for_no_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 token"):
        RangeMap(Shape((GroupShape(1, 1),), 16), 0)
