"""Who is admitted beside whom: the arithmetic at the device, through frames."""

from __future__ import annotations

import itertools

from kvcluster.errors import OutOfBudget
from kvcluster.wire import messages as wire
from tests.services.world import GRANULE, WireClient, World, close_op, commit_op, grant_op, open_op, refusal, release_op

numbers = itertools.count(1000)


def admit(client: WireClient, number: int, granules: int) -> OutOfBudget | None:
    """Grow to so many granules from nothing, in one group."""
    return grow(client, number, granules, granules)


def grow(client: WireClient, number: int, more: int, granules: int) -> OutOfBudget | None:
    grant = next(numbers)
    error = refusal(client.ask(grant_op(number, grant, more), commit_op(number, grant, granules)))
    assert error is None or isinstance(error, OutOfBudget)
    return error


def opened(client: WireClient, *requests: int, max_granules: int = 64) -> None:
    for number in requests:
        assert refusal(client.ask(open_op(number, max_tokens=max_granules * 16))) is None


def test_an_admission_leaves_one_growth_of_each_that_runs(client: WireClient) -> None:
    opened(client, 1, 2, 3)
    assert admit(client, 1, 20) is None
    assert admit(client, 2, 20) is None
    error = admit(client, 3, 23)
    assert error is not None
    assert (error.need, error.free) == (23 * GRANULE, 22 * GRANULE)
    assert admit(client, 3, 22) is None


def test_a_running_requests_growth_may_take_the_last_byte(client: WireClient) -> None:
    opened(client, 1, 2)
    assert admit(client, 1, 20) is None
    assert admit(client, 2, 20) is None
    assert grow(client, 1, 24, 44) is None
    assert (grow(client, 2, 1, 21) or OutOfBudget).free == 0  # type: ignore[union-attr]


def test_on_an_empty_device_a_request_may_take_everything(client: WireClient) -> None:
    opened(client, 1)
    assert admit(client, 1, 64) is None


def test_a_request_at_its_most_tokens_needs_no_room_to_grow(client: WireClient) -> None:
    opened(client, 1, max_granules=32)
    opened(client, 2, max_granules=32)
    assert admit(client, 1, 32) is None
    assert admit(client, 2, 32) is None


def test_a_young_one_is_not_admitted_over_an_older_waiter_that_it_would_starve(client: WireClient) -> None:
    opened(client, 1, 2, 3)
    assert admit(client, 1, 40) is None
    assert admit(client, 2, 30) is not None
    error = admit(client, 3, 2)  # 24 are free, and 2 waits for 30
    assert error is not None
    assert error.free == 0
    client.ask(release_op(1, 0, 40), close_op(1))
    assert admit(client, 3, 40) is not None
    assert admit(client, 2, 30) is None
    assert admit(client, 3, 33) is None


def test_a_running_request_that_was_refused_growth_is_no_waiter(client: WireClient) -> None:
    opened(client, 1, 2, 3)
    assert admit(client, 1, 40) is None
    assert refusal(client.ask(grant_op(2, next(numbers), 4))) is None  # held, so that the growth is refused
    assert grow(client, 1, 24, 64) is not None
    assert admit(client, 3, 2) is None


def test_an_older_waiter_is_not_held_back_by_younger_ones(client: WireClient) -> None:
    opened(client, 1, 2, 3)
    assert admit(client, 1, 40) is None
    assert admit(client, 3, 30) is not None
    assert admit(client, 2, 20) is None


def test_a_waiter_that_got_its_grant_waits_no_more_even_before_it_commits(client: WireClient) -> None:
    opened(client, 1, 2, 3)
    assert admit(client, 1, 40) is None
    assert admit(client, 2, 30) is not None
    assert refusal(client.ask(grant_op(2, next(numbers), 10))) is None
    assert admit(client, 3, 13) is None


def test_a_waiter_that_ends_holds_nobody_back(world: World, client: WireClient) -> None:
    other = WireClient(world.service)
    opened(client, 1)
    opened(other, 1)
    opened(client, 2)
    assert admit(client, 1, 40) is None
    assert admit(other, 1, 30) is not None
    assert admit(client, 2, 2) is not None
    world.service.disconnected(other.session)
    assert admit(client, 2, 2) is None


def test_the_refusal_names_the_oldest_request_on_the_device_whoever_asks(world: World, client: WireClient) -> None:
    other = WireClient(world.service)
    opened(other, 1)
    opened(client, 1, 2)
    assert admit(client, 1, 40) is None
    error = admit(client, 2, 40)
    assert error is not None
    assert error.oldest_arrival == 1
    other.ask(close_op(1))
    error = admit(client, 2, 40)
    assert error is not None
    assert error.oldest_arrival == 2


def test_a_request_that_gave_everything_back_keeps_its_arrival_number_and_its_place(client: WireClient) -> None:
    opened(client, 1, 2, 3)
    assert admit(client, 1, 40) is None
    assert admit(client, 2, 20) is None
    client.ask(release_op(2, 0, 20))  # preempted
    error = admit(client, 2, 30)
    assert error is not None
    assert error.oldest_arrival == 1
    assert admit(client, 3, 1) is not None
    client.ask(close_op(1))  # its windows stay charged: the process may have them
    assert admit(client, 2, 24) is None


def test_the_wait_told_follows_the_load(world: World, client: WireClient) -> None:
    opened(client, 1, 2, 3)
    assert admit(client, 1, 60) is None
    blind = admit(client, 2, 40)
    client.ask(release_op(1, 50, 10))
    small, large = admit(client, 2, 14), admit(client, 2, 15)
    world.clock.advance(60)
    later = admit(client, 2, 15)
    assert blind is not None
    assert small is not None
    assert large is not None
    assert later is not None
    assert blind.retry_after_s == 0.1
    assert 0.1 < small.retry_after_s < large.retry_after_s <= later.retry_after_s == 2.0


def test_a_quarantined_request_needs_no_room_to_grow(client: WireClient) -> None:
    opened(client, 1, 2)
    assert admit(client, 1, 20) is None
    client.ask(release_op(1, 0, 1, "quarantined"))
    assert admit(client, 2, 44) is None


def test_the_oldest_gets_through_however_many_young_ones_come(client: WireClient) -> None:
    opened(client, 1, 2)
    assert admit(client, 1, 50) is None
    assert admit(client, 2, 60) is not None
    for young in range(3, 40):
        opened(client, young)
        assert admit(client, young, 1) is not None
    client.ask(release_op(1, 0, 50), close_op(1))
    assert admit(client, 2, 60) is None


def test_arrival_numbers_are_the_devices_and_not_a_sessions(world: World, client: WireClient) -> None:
    other = WireClient(world.service)
    arrivals = []
    for who in (client, other, client):
        [answer] = who.ask(open_op(next(numbers))).results[0].answers
        assert isinstance(answer, wire.Opened)
        arrivals.append(answer.arrival)
    assert arrivals == [1, 2, 3]
