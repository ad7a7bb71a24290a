"""Things drawn by chance: as often as they weigh, never what was taken out, and in a step or two."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcluster.index.urn import Urn

ACTS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 40)), max_size=60)


def filled(weights: dict[int, int]) -> Urn[int]:
    urn: Urn[int] = Urn()
    for thing, weight in weights.items():
        urn.put(thing, weight)
    return urn


@given(ACTS, st.integers(1, 20))
def test_an_urn_has_what_was_put_last_and_draws_nothing_else(acts: list[tuple[int, int]], most: int) -> None:
    urn: Urn[int] = Urn()
    weights: dict[int, int] = {}
    for thing, weight in acts:
        urn.put(thing, weight)
        weights[thing] = weight
    here = {thing: weight for thing, weight in weights.items() if weight}
    assert (len(urn), urn.weight) == (len(here), sum(here.values()))
    assert [thing in urn for thing in range(10)] == [thing in here for thing in range(10)]
    drawn = urn.some(most)
    if urn.weight <= most:
        assert Counter(drawn) == here
    else:
        assert len(drawn) == most
        assert {*drawn} <= here.keys()


def test_a_thing_is_drawn_as_often_as_it_weighs() -> None:
    weights = {1: 1, 2: 2, 3: 3, 4: 7, 5: 8, 6: 100}
    urn = filled(weights)
    drawn = Counter(thing for _ in range(1_000) for thing in urn.some(100))
    for thing, weight in weights.items():
        assert drawn[thing] == pytest.approx(100_000 * weight / 121, rel=0.1)


def test_what_was_taken_out_is_not_drawn_and_cannot_be_taken_again() -> None:
    urn = filled(dict.fromkeys(range(100), 3))
    for thing in range(0, 100, 2):
        urn.take(thing)
    assert urn.weight == 150
    assert all(thing % 2 for thing in urn.some(100))
    with pytest.raises(KeyError):
        urn.take(0)
    assert len(urn) == 50
