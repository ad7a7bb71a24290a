"""Windows one by one and as runs name the same windows."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kvcluster.geometry.windows import Window, runs_of, windows_of

WINDOWS = st.sets(st.builds(Window, st.integers(0, 2), st.integers(0, 2), st.integers(0, 12)))


@given(WINDOWS)
def test_windows_in_any_order_survive_the_way_to_runs_and_back(windows: set[Window]) -> None:
    assert list(windows_of(runs_of(windows))) == sorted(windows)


@given(WINDOWS)
def test_runs_are_as_few_as_can_be(windows: set[Window]) -> None:
    runs = runs_of(windows)
    assert all(run.count >= 1 for run in runs)
    for one, next_one in pairwise(runs):
        same_fragment = (one.group, one.fragment) == (next_one.group, next_one.fragment)
        assert not (same_fragment and one.start + one.count == next_one.start)


def test_no_windows_are_no_runs() -> None:
    assert runs_of(()) == ()
    assert list(windows_of(())) == []
