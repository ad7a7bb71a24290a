from __future__ import annotations

from contextlib import ExitStack

import pytest

from actors.openai.places import Full, Places
from kvcluster.services.pacing import Pace
from kvcluster.testing.clock import ManualClock


def places_of(most: int) -> Places:
    return Places(most, Pace(least_s=1.0, most_s=60.0, clock=ManualClock()))


def test_one_more_than_there_are_is_turned_away_and_each_a_little_later() -> None:
    places = places_of(3)
    with ExitStack() as taken:
        for _ in range(3):
            taken.enter_context(places.one())
        told = []
        for _ in range(4):
            with pytest.raises(Full) as full, places.one():
                pass
            told.append(full.value.retry_after_s)
        assert told == sorted(set(told))
        assert places.taken == 3


def test_a_place_is_free_again_however_its_holder_ends() -> None:
    places = places_of(1)
    with pytest.raises(RuntimeError), places.one():
        raise RuntimeError
    with places.one():
        assert places.taken == 1
    assert places.taken == 0
