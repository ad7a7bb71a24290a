"""No grant, no commit: each reason is refused before any driver call, and nothing changes; over both doors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from kvcluster.errors import GrantRefused, NeverFits, NotAllowed, OutOfBudget, UnknownRequest
from kvcluster.ids import GrantId
from kvcluster.services.sequence import Grant, SequenceMemory
from kvcluster.testing.invariants import picture
from kvcluster.wire import messages as wire
from tests.services.world import (
    GRANULE,
    TOKENS,
    WireClient,
    World,
    close_op,
    commit_op,
    give_back_op,
    grant_op,
    refusal,
)


def missing(world: World, memory: SequenceMemory) -> Grant:
    grant = memory.grant(32)
    return replace(grant, identity=GrantId(memory.request, 10_000))


def spent(world: World, memory: SequenceMemory) -> Grant:
    grant = memory.grant(16)
    memory.commit(16, grant)
    return grant


def expired(world: World, memory: SequenceMemory) -> Grant:
    grant = memory.grant(32)
    world.clock.advance(5)
    return grant


def returned(world: World, memory: SequenceMemory) -> Grant:
    grant = memory.grant(32)
    memory.give_back(grant)
    return grant


def foreign(world: World, memory: SequenceMemory) -> Grant:
    return world.open().grant(32)


def too_small(world: World, memory: SequenceMemory) -> Grant:
    return memory.grant(16)


REASONS = [missing, spent, expired, returned, foreign, too_small]


@pytest.mark.parametrize("make_grant", REASONS)
def test_a_memory_is_not_committed_without_a_good_grant(
    world: World, make_grant: Callable[[World, SequenceMemory], Grant]
) -> None:
    memory = world.open()
    memory.give_back(memory.grant(16))  # the device knows it
    grant = make_grant(world, memory)
    before, calls = picture(world.device), len(world.driver.log())
    windows = memory.windows
    with pytest.raises(GrantRefused) as caught:
        memory.commit(32, grant)
    assert caught.value.reason == make_grant.__name__.replace("_", "-")
    assert len(world.driver.log()) == calls
    assert picture(world.device) == before
    assert memory.windows == windows
    memory.commit(32, memory.grant(32))


def missing_frame(client: WireClient, world: World) -> wire.Commit:
    return commit_op(1, 99, 2)


def spent_frame(client: WireClient, world: World) -> wire.Commit:
    client.ask(grant_op(1, 5, 2), commit_op(1, 5, 1))
    return commit_op(1, 5, 2)


def expired_frame(client: WireClient, world: World) -> wire.Commit:
    client.ask(grant_op(1, 5, 2))
    world.clock.advance(5)
    return commit_op(1, 5, 2)


def returned_frame(client: WireClient, world: World) -> wire.Commit:
    client.ask(grant_op(1, 5, 2))
    client.ask(give_back_op(1, 5))
    return commit_op(1, 5, 2)


def foreign_frame(client: WireClient, world: World) -> wire.Commit:
    client.ask(grant_op(2, 5, 2))
    return commit_op(1, 5, 2)


def too_small_frame(client: WireClient, world: World) -> wire.Commit:
    client.ask(grant_op(1, 5, 1))
    return commit_op(1, 5, 2)


FRAMES = [missing_frame, spent_frame, expired_frame, returned_frame, foreign_frame, too_small_frame]


@pytest.mark.parametrize("make_frame", FRAMES)
def test_a_frame_does_not_commit_without_a_good_grant(
    world: World, client: WireClient, make_frame: Callable[[WireClient, World], wire.Commit]
) -> None:
    client.opened(1)
    client.opened(2)
    op = make_frame(client, world)
    before, calls = picture(world.device), len(world.driver.log())
    error = refusal(client.ask(op))
    assert isinstance(error, GrantRefused)
    assert error.reason == make_frame.__name__.removesuffix("_frame").replace("_", "-")
    assert len(world.driver.log()) == calls
    assert picture(world.device) == before


def test_another_sessions_grant_number_is_missing_and_stays_its_owners(world: World, client: WireClient) -> None:
    other = WireClient(world.service)
    client.opened(1)
    other.opened(1)
    other.ask(grant_op(1, 5, 2))
    error = refusal(client.ask(commit_op(1, 5, 2)))
    assert isinstance(error, GrantRefused)
    assert error.reason == "missing"
    assert refusal(other.ask(commit_op(1, 5, 2))) is None


def test_a_request_that_is_not_open_commits_grants_releases_and_closes_nothing(
    world: World, client: WireClient
) -> None:
    for op in (grant_op(1, 1, 1), commit_op(1, 1, 1), give_back_op(1, 1), close_op(1)):
        assert isinstance(refusal(client.ask(op)), UnknownRequest)
    assert world.driver.log() == ()


def test_a_grant_larger_than_the_device_never_fits_and_holds_nobody_back(world: World, client: WireClient) -> None:
    client.opened(1)
    client.opened(2)
    error = refusal(client.ask(grant_op(1, 1, 65)))
    assert isinstance(error, NeverFits)
    assert (error.need, error.capacity) == (65 * GRANULE, 64 * GRANULE)
    assert refusal(client.ask(grant_op(2, 2, 64))) is None


def test_a_grant_counts_what_its_request_holds_already(world: World, client: WireClient) -> None:
    client.opened(1)
    client.ask(grant_op(1, 1, 4), commit_op(1, 1, 4))
    assert isinstance(refusal(client.ask(grant_op(1, 2, 61))), NeverFits)
    assert refusal(client.ask(grant_op(1, 3, 60))) is None


def test_two_clients_that_saw_the_same_free_bytes_do_not_both_get_them(world: World, client: WireClient) -> None:
    other = WireClient(world.service)
    client.opened(1)
    other.opened(1)
    assert world.granules("free") == 64
    assert refusal(client.ask(grant_op(1, 1, 40))) is None
    error = refusal(other.ask(grant_op(1, 1, 40)))
    assert isinstance(error, OutOfBudget)
    assert (error.need, error.free) == (40 * GRANULE, 24 * GRANULE)


@pytest.mark.parametrize("tokens", [0, -1, 16 * TOKENS + 1])
def test_no_tokens_or_more_than_were_reserved_are_misuse_and_send_nothing(world: World, tokens: int) -> None:
    memory = world.open()
    grant = memory.grant(16)
    frames = world.device.statistics().frames
    with pytest.raises(ValueError, match="has room for 1 to 256"):
        memory.commit(tokens, grant)
    with pytest.raises(ValueError, match="has room for 1 to 256"):
        memory.grant(tokens)
    assert world.device.statistics().frames == frames
    memory.commit(16, grant)


def test_more_tokens_than_were_reserved_are_refused_by_the_device_too(world: World, client: WireClient) -> None:
    client.opened(1)
    client.ask(grant_op(1, 1, 20))
    before = picture(world.device)
    assert isinstance(refusal(client.ask(commit_op(1, 1, 17))), NotAllowed)
    assert picture(world.device) == before
    assert world.driver.log() == ()


def test_what_the_commit_does_not_need_goes_back_at_once(world: World, client: WireClient) -> None:
    client.opened(1)
    client.ask(grant_op(1, 1, 10), commit_op(1, 1, 3))
    assert (world.granules("free"), world.granules("granted"), world.granules("requests")) == (61, 0, 3)
