"""Delivery repeats and reorders; what is executed is executed once, and every check has its place in the order."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvcluster.errors import (
    BadFrame,
    LateDuplicate,
    NeverFits,
    NotAllowed,
    OutOfBudget,
    SessionEnded,
    StaleEpoch,
)
from kvcluster.testing.invariants import picture
from kvcluster.wire import messages as wire
from tests.services.world import (
    GRANULE,
    Sizes,
    WireClient,
    World,
    close_op,
    commit_op,
    give_back_op,
    grant_op,
    grow_ops,
    key,
    open_op,
    refusal,
    release_op,
)


def test_the_same_bytes_twice_get_the_same_reply_and_are_executed_once(world: World, client: WireClient) -> None:
    client.opened(1)
    frame = client.frame(*grow_ops(1, 1, 3))
    first = world.service.frame(frame)
    before, calls = picture(world.device), len(world.driver.log())
    for _ in range(3):
        assert world.service.frame(frame) == first
    assert (picture(world.device), len(world.driver.log())) == (before, calls)
    assert world.device.statistics().frames == 2


def test_a_refusal_is_a_reply_like_any_other_and_asking_again_is_a_new_seq(world: World, client: WireClient) -> None:
    hungry = client.opened(1)
    client.opened(2)
    client.ask(*grow_ops(2, 1, 16))
    client.opened(3, max_tokens=64 * 16)
    client.ask(grant_op(3, 2, 48))
    frame = client.frame(grant_op(hungry.number, 3, 8))
    first = client.send(frame)
    assert isinstance(refusal(first), OutOfBudget)
    client.ask(give_back_op(3, 2))  # by now it would be granted
    assert client.send(frame) == first
    assert refusal(client.ask(grant_op(hungry.number, 3, 8))) is None


def test_a_late_duplicate_below_the_watermark_is_never_executed(world: World, client: WireClient) -> None:
    client.opened(1)
    release = client.frame(*grow_ops(1, 1, 3))
    client.send(release)
    client.send(client.frame(*grow_ops(1, 2, 4), ack=2))
    before = picture(world.device)
    error = refusal(client.send(release))
    assert isinstance(error, LateDuplicate)
    assert (error.seq, error.watermark) == (2, 3)
    assert picture(world.device) == before


def test_replies_are_forgotten_as_they_are_acknowledged(world: World, client: WireClient) -> None:
    for number in range(1, 6):
        client.opened(number)
    assert world.device.statistics().stored_replies == 5
    client.send(client.frame(close_op(1), ack=4))
    assert world.device.statistics().stored_replies == 2
    client.send(client.frame(close_op(2), ack=1))  # an older frame, overtaken: the watermark does not go back
    assert world.device.statistics().stored_replies == 3
    assert isinstance(refusal(client.send(client.frame(open_op(9), seq=4))), LateDuplicate)


def test_frames_of_different_requests_run_in_whatever_order_they_come(world: World, client: WireClient) -> None:
    client.opened(1)
    client.opened(2)
    early, late = client.frame(*grow_ops(1, 1, 2)), client.frame(*grow_ops(2, 2, 3))
    assert refusal(client.send(late)) is None
    assert refusal(client.send(early)) is None
    assert world.granules("requests") == 5


def test_a_frame_of_another_epoch_is_stale_and_the_reply_names_the_devices_own(
    world: World, client: WireClient
) -> None:
    reply = client.send(client.frame(open_op(1), epoch=2))
    error = refusal(reply)
    assert isinstance(error, StaleEpoch)
    assert (error.sent, error.current, reply.epoch) == (2, 1, 1)
    assert world.device.statistics().open_requests == 0


def test_a_frame_of_an_unknown_session_is_refused(world: World, client: WireClient) -> None:
    assert isinstance(refusal(client.send(client.frame(open_op(1), session="nobody"))), SessionEnded)


def test_the_epoch_is_checked_before_the_session_the_session_before_the_watermark_and_that_before_the_reply(
    world: World, client: WireClient
) -> None:
    other = WireClient(world.service)  # keeps the ended session's process alive
    first = client.frame(*grow_ops(1, 1, 1), seq=1)
    client.send(first)
    client.send(client.frame(open_op(1), seq=2, ack=1))
    stored = client.frame(open_op(1), seq=2, ack=2)  # stored, and acknowledged by this very frame
    assert isinstance(refusal(client.send(stored)), LateDuplicate)
    client.send(client.frame(*grow_ops(1, 2, 1), seq=3))
    world.service.disconnected(client.session)
    assert isinstance(refusal(client.send(first)), SessionEnded)
    assert isinstance(refusal(client.send(client.frame(open_op(1), seq=1, epoch=9))), StaleEpoch)
    assert refusal(other.ask(open_op(1))) is None


def test_a_group_whose_last_operation_is_refused_is_not_done_at_all(world: World, client: WireClient) -> None:
    client.opened(1)
    client.ask(*grow_ops(1, 1, 4))
    before = picture(world.device)
    for ops in (
        (release_op(1, 0, 2), release_op(1, 1, 2)),
        (release_op(1, 3, 1), grant_op(1, 2, 65)),
        (grant_op(1, 3, 2), commit_op(1, 3, 4), commit_op(1, 99, 8)),
        (grant_op(1, 4, 2), grant_op(1, 4, 2)),
        (grant_op(1, 5, 8), commit_op(1, 5, 8), commit_op(1, 6, 16)),
    ):
        reply = client.ask(*ops)
        assert refusal(reply) is not None
        assert reply.results[0].answers == ()
        assert picture(world.device).claims() == before.claims()


def test_a_refused_group_leaves_the_frames_other_groups_done(world: World, client: WireClient) -> None:
    for number in (1, 2, 3):
        client.opened(number)
    reply = client.ask(*grow_ops(1, 1, 2), commit_op(2, 77, 1), *grow_ops(3, 3, 3))
    assert [result.fault is None for result in reply.results] == [True, False, True]
    assert [result.request.number for result in reply.results] == [1, 2, 3]
    assert world.granules("requests") == 5


def test_an_open_stands_even_if_the_grant_beside_it_is_refused(world: World, client: WireClient) -> None:
    client.opened(1)
    client.ask(grant_op(1, 1, 60))
    reply = client.ask(open_op(2), *grow_ops(2, 2, 8))
    [opened] = reply.results[0].answers
    assert isinstance(opened, wire.Opened)
    error = refusal(reply)
    assert isinstance(error, OutOfBudget)
    assert error.oldest_arrival == 1
    assert opened.arrival == 2
    client.ask(give_back_op(1, 1))
    assert refusal(client.ask(*grow_ops(2, 2, 8))) is None


@pytest.mark.parametrize(
    "ops",
    [
        (close_op(1), close_op(1)),
        (close_op(1), grant_op(1, 9, 1)),
        (grant_op(1, 9, 1), commit_op(1, 9, 3), close_op(1)),
        (release_op(1, 0, 1), grant_op(1, 9, 1), commit_op(1, 9, 3)),
        (grant_op(1, 9, 1), commit_op(1, 9, 3), release_op(1, 0, 1)),
        (give_back_op(1, 2), give_back_op(1, 2)),
        (grant_op(1, 9, 1), give_back_op(1, 9)),
    ],
)
def test_operations_that_cannot_be_done_together_are_refused_together(
    world: World, client: WireClient, ops: tuple[wire.Operation, ...]
) -> None:
    client.opened(1)
    client.ask(*grow_ops(1, 1, 2))
    client.ask(grant_op(1, 2, 1))
    before = picture(world.device)
    assert isinstance(refusal(client.ask(*ops)), NotAllowed)
    assert picture(world.device) == before
    assert refusal(client.ask(release_op(1, 0, 2), close_op(1))) is None


def test_windows_given_back_twice_or_never_had_reach_no_neighbour(world: World, client: WireClient) -> None:
    for number in (1, 2):
        client.opened(number)
        client.ask(*grow_ops(number, number, 4))
    client.ask(release_op(1, 2, 2))
    before = picture(world.device)
    for op in (
        release_op(1, 2, 1),
        release_op(1, 0, 2**62),
        release_op(1, 2**62, 1),
        release_op(1, 4, 1),
        release_op(1, 0, 1, fragment=1),
    ):
        assert isinstance(refusal(client.ask(op)), NotAllowed)
        assert picture(world.device) == before


def test_a_request_opens_once_and_its_number_again_only_as_another_generation(world: World, client: WireClient) -> None:
    client.opened(1)
    assert isinstance(refusal(client.ask(open_op(1))), NotAllowed)
    assert refusal(client.ask(open_op(1, generation=1))) is None
    client.ask(*grow_ops(1, 1, 2))
    foreign = wire.Commit(request=key(1, 1), grant=1, tokens=16)
    assert refusal(client.ask(foreign)) is not None
    assert world.device.statistics().requests == 2


@pytest.mark.parametrize("huge", [65, 2**50, 2**58])
def test_what_can_never_fit_is_said_at_open_and_costs_nothing(world: World, client: WireClient, huge: int) -> None:
    for op in (open_op(1, max_tokens=huge * 16), open_op(1, max_tokens=16, fragments=huge)):
        error = refusal(client.ask(op))
        assert isinstance(error, NeverFits)
        assert error.capacity == 64 * GRANULE
    statistics = world.device.statistics()
    assert (statistics.open_requests, statistics.requests, statistics.reserved_bytes) == (0, 0, 0)
    assert statistics.refusals == {"NeverFits": 2}


def test_bytes_that_are_no_frame_are_refused_and_nothing_is_executed(world: World, client: WireClient) -> None:
    before = picture(world.device)
    for data in (b"", b"\x80", b"nonsense", client.frame(open_op(1))[:-1]):
        with pytest.raises(BadFrame):
            world.service.frame(data)
    assert picture(world.device) == before


def test_a_commit_whose_windows_do_not_fit_into_the_reply_is_undone_and_fits_a_frame_of_its_own(
    open_world: Callable[..., World],
) -> None:
    world = open_world(Sizes(most_runs=8))
    client = WireClient(world.service)
    for number, fragments in ((1, 5), (2, 4), (3, 9)):
        client.ask(open_op(number, max_tokens=16, fragments=fragments))
    before = picture(world.device)
    assert isinstance(refusal(client.ask(*grow_ops(3, 3, 9, windows=1))), NotAllowed)
    assert picture(world.device).claims() == before.claims()
    reply = client.ask(*grow_ops(1, 1, 5, windows=1), *grow_ops(2, 2, 4, windows=1))
    assert [result.fault is None for result in reply.results] == [True, False]
    assert refusal(client.ask(*grow_ops(2, 4, 4, windows=1))) is None
    assert world.granules("requests") == 9
