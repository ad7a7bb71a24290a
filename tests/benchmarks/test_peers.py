"""The logic of `benchmarks.peers` that needs no peer: loads, their rates, and the names of what is installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.peers.arrivals import Wanted, completed_per_minute, made, scaled
from benchmarks.peers.environments import distribution
from benchmarks.peers.loads import Arrival, Progress, run_load


class OneTokenAStep:
    """Gives every running request a token a step; refuses those that want none."""

    def __init__(self) -> None:
        self.left: dict[int, int] = {}

    def begin(self, key: int, arrival: Arrival) -> None:
        self.left[key] = arrival.max_tokens

    def step(self) -> Iterator[Progress]:
        for key, left in list(self.left.items()):
            if left == 0:
                yield Progress(key, 0, is_done=True, error="wants nothing")
            else:
                yield Progress(key, 1, is_done=left == 1)
            self.left[key] = left - 1
            if self.left[key] <= 0:
                del self.left[key]


def test_every_arrival_is_served_with_its_tokens_and_not_before_it_comes() -> None:
    served = run_load(OneTokenAStep(), [Arrival(0.0, (1,), 3), Arrival(0.01, (1,), 2)], limit_s=10.0)
    assert [one.tokens for one in served] == [3, 2]
    assert served[1].first_s is not None
    assert served[1].first_s >= 0.01


def test_a_refused_request_ends_with_its_error_and_is_not_counted_as_done() -> None:
    (served,) = run_load(OneTokenAStep(), [Arrival(0.0, (1,), 0)], limit_s=10.0)
    assert served.error == "wants nothing"
    assert served.done_s is None


def test_what_was_not_served_by_the_limit_has_neither_answer_nor_error() -> None:
    (served,) = run_load(OneTokenAStep(), [Arrival(5.0, (1,), 1)], limit_s=0.01)
    assert not served.has_ended


def test_the_longest_request_is_scaled_to_the_limit_and_short_loads_stay_as_they_are() -> None:
    load = [Wanted(0.0, 900, 100), Wanted(1.0, 4, 1)]
    assert scaled(load, most_tokens=500) == [Wanted(0.0, 450, 50), Wanted(1.0, 2, 1)]
    assert scaled(load, most_tokens=1_000) == load


def test_made_arrivals_are_the_same_each_time_and_in_order() -> None:
    load = made(requests=16)
    assert load == made(requests=16)
    assert [one.at_s for one in load] == sorted(one.at_s for one in load)


def test_only_answers_count_in_a_rate() -> None:
    served = [{"done_s": 20.0}, {"done_s": None}, {"done_s": 30.0}]
    assert completed_per_minute({"served": served}) == 4.0
    assert completed_per_minute({"served": [{"done_s": None}]}) == 0.0


@pytest.mark.parametrize("line", ["torch==2.13.0", "torch>=2; python_version<'3.14'", "Torch", "torch [x]"])
def test_a_requirement_begins_with_its_name(line: str) -> None:
    assert distribution(line) == "torch"
