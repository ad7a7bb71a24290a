"""How runs are cut: all of a run, in order, in bulk handles where others share nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvcluster.geometry.residency import GroupShape, Keeps, Shape
from kvcluster.ids import WindowRun
from kvcluster.memory.handle_sizes import HandleSizes

GRANULE = 4096
SHAPE = Shape((GroupShape(2, 256), GroupShape(1, 256, Keeps.RING, 9), GroupShape(1, 256, Keeps.SNAPSHOT, 5)), GRANULE)


def sizes(shareable_tokens: int, bulk: int, *runs: WindowRun) -> list[int]:
    """In granules."""
    found = HandleSizes.of(SHAPE, shareable_tokens, bulk * GRANULE).cut(runs)
    return [size // GRANULE for size in found]


def test_a_run_beyond_the_shareable_tokens_is_cut_into_bulk_handles_and_its_rest_into_granules() -> None:
    assert sizes(0, 4, WindowRun(0, 0, 0, 10)) == [4, 4, 1, 1]
    assert sizes(0, 4, WindowRun(0, 1, 7, 3)) == [1, 1, 1]


def test_below_the_shareable_tokens_every_window_has_a_handle_of_its_own() -> None:
    assert sizes(33, 4, WindowRun(0, 0, 0, 9)) == [1, 1, 1, 4, 1, 1]  # three windows hold a byte of 33 tokens
    assert sizes(33, 4, WindowRun(0, 0, 2, 5)) == [1, 4]
    assert sizes(10_000, 4, WindowRun(0, 0, 0, 5)) == [1] * 5


def test_rings_and_snapshots_are_cut_in_bulk_whatever_is_shareable() -> None:
    assert sizes(10_000, 4, WindowRun(1, 0, 0, 9), WindowRun(2, 0, 0, 5)) == [4, 4, 1, 4, 1]


def test_where_no_handle_is_larger_than_a_granule_each_window_has_one() -> None:
    assert sizes(0, 1, WindowRun(0, 0, 0, 5)) == [1] * 5


@given(st.integers(0, 400), st.integers(1, 6), st.integers(0, 20), st.integers(1, 40))
def test_a_cut_is_as_long_as_the_run_and_no_handle_reaches_into_the_shareable_range(
    shareable: int, bulk: int, start: int, count: int
) -> None:
    cut = sizes(shareable, bulk, WindowRun(0, 0, start, count))
    assert sum(cut) == count
    begins = start
    for size in cut:
        assert size in (1, bulk)
        assert size == 1 or begins * 16 >= shareable
        begins += size
