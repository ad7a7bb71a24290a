"""Residency in closed form equals a count of granules over every byte of every token."""

from __future__ import annotations

import pickle
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcluster.geometry.layout import Layout, group_layouts
from kvcluster.geometry.model import KvGeometry
from kvcluster.geometry.residency import GroupShape, Keeps, RangeMap, Shape
from kvcluster.ids import WindowRun
from kvcluster.units import KIB, MIB
from tests.geometry.brute_force import GRANULES, LAYOUTS, bytes_of, geometries, granules_filled, granules_touched

TOKENS = st.integers(0, 20)
EVERY = st.builds(GroupShape, st.integers(1, 4), st.integers(1, 40))
FIXED = st.builds(
    GroupShape, st.integers(1, 4), st.integers(1, 40), st.sampled_from((Keeps.RING, Keeps.SNAPSHOT)), st.integers(1, 6)
)
SHAPES = st.builds(Shape, st.lists(EVERY | FIXED, min_size=1, max_size=4).map(tuple), st.integers(1, 64))


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


@given(SHAPES, st.data())
def test_tokens_in_is_the_most_tokens_that_need_no_further_window(shape: Shape, data: st.DataObject) -> None:
    most = [8 if group.keeps is Keeps.EVERY else group.windows for group in shape.groups]
    windows = tuple(data.draw(st.integers(0, count)) for count in most)
    tokens = shape.tokens_in(windows)
    assert all(need <= have for need, have in zip(shape.windows(tokens), windows, strict=True))
    assert tokens == sys.maxsize or any(n > h for n, h in zip(shape.windows(tokens + 1), windows, strict=True))


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


def addresses(whole: RangeMap, run: WindowRun) -> list[int]:
    """Where the run's windows lie in the range, each as often as it is mapped."""
    first, granule_bytes = whole.run_offset_bytes(run), whole.shape.granule_bytes
    return [
        first + copy * whole.ring_bytes(run.group) + window * granule_bytes
        for copy in range(whole.copies(run.group))
        for window in range(run.count)
    ]


def runs_of(whole: RangeMap) -> list[WindowRun]:
    """All that can ever be mapped."""
    shape = whole.shape
    return list(shape.runs(shape.windows(0), shape.with_snapshots(shape.windows(whole.max_tokens))))


@given(SHAPES, st.integers(1, 40))
def test_the_windows_of_a_range_fill_it_without_gap_or_overlap(shape: Shape, max_tokens: int) -> None:
    whole = RangeMap(shape, max_tokens)
    places = [address for run in runs_of(whole) for address in addresses(whole, run)]
    assert sorted(places) == list(range(0, whole.size_bytes, shape.granule_bytes))


@given(SHAPES, st.integers(1, 40), st.data())
def test_a_runs_windows_lie_in_its_fragment_from_its_offset_on(
    shape: Shape, max_tokens: int, data: st.DataObject
) -> None:
    whole = RangeMap(shape, max_tokens)
    run = data.draw(st.sampled_from(runs_of(whole)))
    start = whole.run_offset_bytes(run)
    assert start == whole.fragment_offset_bytes(run.group, run.fragment)
    assert max(addresses(whole, run)) + shape.granule_bytes == start + whole.fragment_pitch_bytes(run.group)
    assert run.count == whole.most_windows(run.group)


@given(SHAPES, st.integers(1, 40))
def test_a_range_for_more_tokens_is_never_smaller(shape: Shape, max_tokens: int) -> None:
    assert RangeMap(shape, max_tokens).size_bytes <= RangeMap(shape, max_tokens + 1).size_bytes
    assert RangeMap(shape, max_tokens).most_bytes == shape.committed_bytes(max_tokens)


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


@given(SHAPES, st.integers(1, 40))
def test_a_range_survives_pickling_and_is_equal_to_its_like(shape: Shape, max_tokens: int) -> None:
    whole = RangeMap(shape, max_tokens)
    assert pickle.loads(pickle.dumps(whole)) == whole == RangeMap(shape, max_tokens)
    assert hash(whole) == hash(RangeMap(shape, max_tokens))
