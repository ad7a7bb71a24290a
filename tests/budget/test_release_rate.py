"""How long until bytes come back, from how fast they did."""

from __future__ import annotations

import itertools
import math

import pytest

from kvcluster.budget.release_rate import HALF_LIFE_S, ReleaseRate
from kvcluster.testing.clock import ManualClock


def test_nothing_is_known_before_anything_came_back() -> None:
    assert ReleaseRate(ManualClock()).seconds_until(10**9) == 0.0


def test_a_steady_flow_is_estimated_at_its_rate() -> None:
    clock = ManualClock()
    rate = ReleaseRate(clock)
    for _ in range(2000):
        clock.advance(0.1)
        rate.note(50)
    assert rate.seconds_until(5000) == pytest.approx(10.0, rel=0.01)


def test_without_news_the_estimate_only_grows_and_never_falls_back_to_nothing() -> None:
    clock = ManualClock()
    rate = ReleaseRate(clock)
    rate.note(1000)
    waits = []
    for _ in range(4):
        waits.append(rate.seconds_until(1000))
        clock.advance(HALF_LIFE_S)
    assert [after / before for before, after in itertools.pairwise(waits)] == pytest.approx([2, 2, 2])
    clock.advance(1e9)
    assert rate.seconds_until(1000) == math.inf
