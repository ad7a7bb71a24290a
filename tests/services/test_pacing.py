"""When those may come back that were sent away."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcluster.services.pacing import DEFAULT_S, Pace
from kvcluster.testing.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000.0)


def pace_of(clock: ManualClock, *, least_s: float = 0.1, most_s: float = 30.0) -> Pace:
    return Pace(least_s=least_s, most_s=most_s, clock=clock)


def measured(clock: ManualClock, text_s: float, texts: int = 20) -> Pace:
    """One that saw so many texts end, one every `text_s`, while others waited."""
    pace = pace_of(clock)
    pace.ended(is_short=True)
    for _ in range(texts):
        clock.advance(text_s)
        pace.ended(is_short=True)
    return pace


def test_before_anything_was_measured_each_gets_a_place_a_cautious_time_after_the_last(clock: ManualClock) -> None:
    pace = pace_of(clock)
    assert [pace.place(1, behind=0) for _ in range(3)] == [DEFAULT_S, 2 * DEFAULT_S, 3 * DEFAULT_S]


def test_places_follow_each_other_at_the_measured_pace_behind_those_that_wait(clock: ManualClock) -> None:
    pace = measured(clock, 0.25)
    assert [pace.place(1, behind=8) for _ in range(3)] == pytest.approx([2.25, 2.5, 2.75])


def test_a_request_for_several_texts_takes_as_many_places(clock: ManualClock) -> None:
    pace = measured(clock, 0.25)
    assert pace.place(4, behind=0) == pytest.approx(1.0)
    assert pace.place(1, behind=0) == pytest.approx(1.25)


def test_what_is_told_grows_with_every_refusal_and_falls_when_none_come(clock: ManualClock) -> None:
    pace = measured(clock, 0.1)
    told = []
    for _ in range(50):  # three come for each that ends
        clock.advance(0.1)
        pace.ended(is_short=True)
        told += [pace.place(1, behind=4) for _ in range(3)]
    assert told == sorted(told)
    assert told[-1] > 5 * told[0]
    for _ in range(200):
        clock.advance(0.1)
        pace.ended(is_short=True)
    assert pace.place(1, behind=0) == pytest.approx(0.1)


def test_places_begin_where_somebody_else_knows_that_there_is_room(clock: ManualClock) -> None:
    pace = measured(clock, 0.25)
    assert [pace.place(1, behind=0, not_before_s=3.0) for _ in range(3)] == pytest.approx([3.0, 3.25, 3.5])


def test_hours_of_overload_leave_no_debt_beyond_the_longest_wait(clock: ManualClock) -> None:
    pace = pace_of(clock, most_s=5.0)
    for _ in range(10_000):
        assert pace.place(1, behind=3) <= 5.0
    clock.advance(5.0)
    pace.ended(is_short=False)
    assert pace.place(1, behind=0) <= 5.0
    clock.advance(10.0)
    for _ in range(100):
        pace.ended(is_short=True)
    assert pace.place(1, behind=0) < 1.0


def test_ends_while_nobody_lacked_room_say_nothing_of_the_pace(clock: ManualClock) -> None:
    pace = measured(clock, 0.25)
    pace.ended(is_short=False)
    for _ in range(100):
        clock.advance(60.0)
        pace.ended(is_short=False)
    assert pace.place(1, behind=0) < 0.25 + 1e-9


def test_while_nothing_ends_what_is_told_grows(clock: ManualClock) -> None:
    pace = measured(clock, 0.25, texts=3)
    before = pace.place(1, behind=4)
    clock.advance(20.0)
    assert pace.place(1, behind=4) > 2 * before


@given(
    st.lists(st.tuples(st.sampled_from(["end", "short end", "place"]), st.floats(0, 100), st.integers(1, 128))),
    st.floats(0.01, 1.0),
    st.floats(1.0, 60.0),
)
def test_what_is_told_lies_between_the_bounds_whatever_happens(
    acts: list[tuple[str, float, int]], least_s: float, most_s: float
) -> None:
    clock = ManualClock()
    pace = pace_of(clock, least_s=least_s, most_s=most_s)
    for act, seconds, count in acts:
        clock.advance(seconds)
        if act == "place":
            assert least_s <= pace.place(count, behind=count) <= most_s
        else:
            pace.ended(is_short=act == "short end")
