from __future__ import annotations

from contextlib import ExitStack

import pytest

from actors.openai.places import LEAST_S, MOST_S, Places
from actors.openai.problems import Problem
from kvcluster.testing.clock import ManualClock


def told_s(places: Places) -> float:
    """What one is told that is turned away."""
    with pytest.raises(Problem) as told, places.one():
        pass
    assert told.value.retry_after_s is not None
    return told.value.retry_after_s


def test_the_more_are_turned_away_the_later_each_is_told_to_come_and_it_falls_with_every_place_that_is_free() -> None:
    clock = ManualClock()
    places = Places(2, clock)
    for _ in range(100):  # a place is held for ten seconds
        with places.one():
            clock.advance(10)

    with ExitStack() as first, ExitStack() as second:
        first.enter_context(places.one())
        second.enter_context(places.one())
        told = [told_s(places) for _ in range(4)]
        assert told == pytest.approx([5, 10, 15, 20], rel=0.01)
        clock.advance(10)
        first.close()
        first.enter_context(places.one())
        assert told_s(places) == pytest.approx(20, rel=0.01)
        assert all(told_s(places) <= MOST_S for _ in range(100))


def test_nobody_is_told_less_than_a_second() -> None:
    places = Places(1_000, ManualClock())

    with ExitStack() as taken:
        for _ in range(1_000):
            taken.enter_context(places.one())
        assert told_s(places) == LEAST_S
    assert places.taken == 0
