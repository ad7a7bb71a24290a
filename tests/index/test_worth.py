"""What an entry is worth: the most hits for the time that it is kept, as slow arithmetic finds it too."""

from __future__ import annotations

from math import exp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcluster.index.worth import BINS, WIDTHS, Worth, age_bin, gittins, hazards

RATES = st.lists(st.one_of(st.just(0.0), st.floats(1e-9, 1.0)), min_size=BINS, max_size=BINS)


def by_every_horizon(rates: list[float], begin: int) -> float:
    alive, hits, time, best = 1.0, 0.0, 0.0, 0.0
    for rate, width in list(zip(rates, WIDTHS, strict=True))[begin:]:
        ends = 1 - exp(-rate * width)
        hits += alive * ends
        time += alive * (ends / rate if rate else width)
        alive *= 1 - ends
        best = max(best, hits / time)
    return best


@given(RATES)
def test_the_worth_is_that_of_the_best_of_all_horizons(rates: list[float]) -> None:
    expected = [by_every_horizon(rates, begin) for begin in range(BINS)]
    assert gittins(rates) == pytest.approx(expected, rel=1e-6, abs=1e-15)


@given(st.integers(0, 2**31 - 1))
def test_a_bin_has_the_ages_of_half_an_octave(age: int) -> None:
    ends = sum(WIDTHS[: age_bin(age) + 1])
    assert ends - WIDTHS[age_bin(age)] <= age * (1 + 1e-9)
    assert age < ends * (1 + 1e-9)


def test_ages_beyond_the_last_bin_are_in_it() -> None:
    assert age_bin(2**40) == BINS - 1


def test_before_anything_was_learned_the_later_used_and_the_more_often_used_is_worth_more() -> None:
    worth = Worth(2)
    assert worth.of(0, 10) > worth.of(0, 1_000)
    assert worth.of(1, 10) > worth.of(0, 10)


def test_what_surely_comes_back_later_is_worth_more_the_nearer_its_time_is_and_nothing_when_that_is_past() -> None:
    worth = Worth(1)
    for _ in range(1_000):
        worth.hit(0, 100)
    worth.learn([], weight=1, doubt=1)
    assert worth.of(0, 80) > worth.of(0, 10) > worth.of(0, 1_000) == 0


def test_entries_that_wait_or_were_given_up_make_a_hit_less_likely() -> None:
    figures = []
    for waiting, ended in ((0, 0), (100, 0), (100, 100)):
        worth = Worth(1)
        for _ in range(10):
            worth.hit(0, 4)
        for _ in range(ended):
            worth.ended(0, 1_000)
        worth.learn([(0, 1_000)] * waiting, weight=1, doubt=1)
        figures.append(worth.of(0, 2))
    assert figures[0] > figures[1] > figures[2] > 0


def test_what_was_learned_fades_when_the_load_changes() -> None:
    worth = Worth(1)
    for _ in range(100):
        worth.hit(0, 8)
    figures = []
    for _ in range(20):
        worth.learn([(0, 1_000)] * 10, weight=10, doubt=1)
        figures.append(worth.of(0, 4))
    assert figures == sorted(figures, reverse=True)
    assert figures[-1] < figures[0] / 2


def test_a_kind_that_was_never_hit_is_worth_nothing_however_many_wait() -> None:
    worth = Worth(2)
    worth.hit(1, 4)
    worth.learn([(0, 2)] * 50, weight=3, doubt=1)
    assert worth.of(0, 2) == 0 < worth.of(1, 2)


def test_the_hazard_is_hits_over_the_time_that_all_were_seen() -> None:
    hits, seen = [0.0] * BINS, [0.0] * BINS
    hits[4], seen[4], seen[6] = 3.0, 4.0, 5.0
    assert hazards(hits, seen, 0)[4] == pytest.approx(3 / ((5 + 4 / 2) * WIDTHS[4]))
    assert hazards(hits, seen, 10)[4] < hazards(hits, seen, 0)[4]
