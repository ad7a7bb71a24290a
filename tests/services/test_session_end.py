"""The end of a client: EOF takes its grants and isolates its bytes; only its process's death frees them."""

from __future__ import annotations

import os

import pytest

from kvcluster.errors import DriverError, NotAllowed, SessionEnded
from kvcluster.testing.faulty_driver import failing, failing_named
from kvcluster.testing.invariants import assert_nothing_lost, picture
from kvcluster.wire.socket import Hello
from tests.services.world import WireClient, World, close_op, commit_op, grant_op, open_op, refusal, release_op


@pytest.fixture
def holder(client: WireClient) -> WireClient:
    """A client with three windows of one request and a held grant of five granules of another."""
    client.opened(1)
    client.opened(2)
    client.ask(grant_op(1, 1, 3), commit_op(1, 1, 3))
    client.ask(grant_op(2, 2, 5))
    return client


def test_an_eof_returns_grants_at_once_and_quarantines_windows(world: World, holder: WireClient) -> None:
    world.service.disconnected(holder.session)
    assert (world.granules("granted"), world.granules("quarantine"), world.granules("free")) == (0, 3, 61)
    statistics = world.device.statistics()
    assert statistics.open_requests == 0
    assert statistics.sessions == {holder.session: "orphaned"}
    assert statistics.stored_replies == 0  # nobody will ask for them


def test_quarantined_handles_are_given_to_nobody_until_the_process_is_dead(world: World, holder: WireClient) -> None:
    mine = world.service.handles(holder.session, 3)
    other = WireClient(world.service)
    world.service.disconnected(holder.session)
    other.opened(1)
    other.ask(grant_op(1, 1, 4), commit_op(1, 1, 4))
    assert not set(world.service.handles(other.session, other.seq)) & set(mine)
    world.service.gone(holder.session)
    other.opened(2)
    other.ask(grant_op(2, 2, 4), commit_op(2, 2, 4))
    assert set(mine) <= set(world.service.handles(other.session, other.seq))


def test_a_death_frees_everything_and_its_word_may_come_twice(world: World, holder: WireClient) -> None:
    world.service.disconnected(holder.session)
    for _ in range(2):
        world.service.gone(holder.session)
        assert_nothing_lost(world.device)
    assert world.device.statistics().sessions == {}


def test_a_death_may_be_known_before_the_eof(world: World, holder: WireClient) -> None:
    world.service.gone(holder.session)
    assert_nothing_lost(world.device)
    world.service.disconnected(holder.session)
    assert_nothing_lost(world.device)


def test_an_eof_twice_is_once(world: World, holder: WireClient) -> None:
    world.service.disconnected(holder.session)
    before = picture(world.device)
    world.service.disconnected(holder.session)
    assert picture(world.device) == before


def test_one_session_s_end_leaves_another_untouched(world: World, holder: WireClient) -> None:
    other = WireClient(world.service)
    other.opened(1)
    other.ask(grant_op(1, 1, 4), commit_op(1, 1, 4))
    world.service.disconnected(holder.session)
    world.service.gone(holder.session)
    assert (world.granules("requests"), world.granules("free")) == (4, 60)
    assert refusal(other.ask(release_op(1, 0, 4), close_op(1))) is None
    assert_nothing_lost(world.device)


def test_whoever_gave_everything_back_leaves_nothing_to_wait_for(world: World, holder: WireClient) -> None:
    holder.ask(release_op(1, 0, 3), close_op(1))
    holder.ask(close_op(2))
    world.service.disconnected(holder.session)
    assert world.device.statistics().sessions == {}
    assert_nothing_lost(world.device)
    world.clock.advance(7)
    world.service.gone(holder.session)
    assert world.device.statistics().idle_s == 7


def test_frames_tickets_and_heartbeats_after_the_end_reach_nothing(world: World, holder: WireClient) -> None:
    frame = holder.frame(open_op(3))
    world.service.disconnected(holder.session)
    before = picture(world.device)
    for data in (frame, holder.frame(grant_op(1, 9, 1)), holder.frame(open_op(1), seq=1)):
        assert isinstance(refusal(holder.send(data)), SessionEnded)
    for ask in (world.service.redeem, world.service.handles):
        with pytest.raises(SessionEnded):
            ask(holder.session, 3)
    world.service.heartbeat(holder.session)
    world.service.heartbeat("nobody")
    assert picture(world.device) == before


def test_a_session_s_name_is_used_once_also_after_it_left(world: World, client: WireClient) -> None:
    frame = client.frame(open_op(1))
    with pytest.raises(NotAllowed, match="take a new name"):
        world.service.hello(Hello(session=client.session), pid=2)
    world.service.disconnected(client.session)
    with pytest.raises(NotAllowed, match="take a new name"):
        world.service.hello(Hello(session=client.session), pid=2)
    assert isinstance(refusal(client.send(frame)), SessionEnded)


def test_a_client_that_cannot_unmap_keeps_its_windows_charged_until_it_is_dead(
    world: World, client: WireClient
) -> None:
    client.opened(1)
    client.ask(grant_op(1, 1, 4), commit_op(1, 1, 4))
    client.ask(release_op(1, 0, 1, "quarantined"))
    assert (world.granules("requests"), world.granules("quarantine")) == (3, 1)
    assert isinstance(refusal(client.ask(grant_op(1, 2, 1), commit_op(1, 2, 5))), NotAllowed)
    client.ask(release_op(1, 1, 3), close_op(1))
    assert (world.granules("requests"), world.granules("quarantine"), world.granules("free")) == (0, 1, 63)
    world.service.disconnected(client.session)
    assert world.granules("quarantine") == 1
    world.service.gone(client.session)
    assert_nothing_lost(world.device)


def test_a_request_closed_with_windows_keeps_them_charged_until_its_process_is_dead(
    world: World, holder: WireClient
) -> None:
    holder.ask(close_op(1))
    assert (world.granules("requests"), world.granules("quarantine"), world.granules("granted")) == (0, 3, 5)
    world.service.gone(holder.session)
    assert_nothing_lost(world.device)


def test_time_alone_returns_an_expired_grant(world: World, holder: WireClient) -> None:
    world.clock.advance(5)
    world.service.idle()
    assert world.device.statistics().free_bytes == 61 * 4096


def test_a_device_is_idle_from_its_last_session_s_end(world: World, client: WireClient) -> None:
    world.clock.advance(3)
    assert world.device.statistics().idle_s == 0
    world.service.heartbeat(client.session)
    world.service.disconnected(client.session)
    world.clock.advance(2)
    assert world.device.statistics().idle_s == 2


# --- descriptors ----------------------------------------------------------------------------------------------------


def test_a_redemption_is_a_descriptor_a_window_and_the_receiver_owns_them(world: World, holder: WireClient) -> None:
    before = picture(world.device)
    descriptors = world.service.redeem(holder.session, 3)
    assert [handle.size_bytes for handle in descriptors.handles] == [4096] * 3
    assert descriptors.total == 3
    assert [os.fstat(fd).st_size for fd in descriptors.fds] == [4096] * 3
    for fd in descriptors.fds:
        os.close(fd)
    assert picture(world.device) == before


def test_a_redemption_that_fails_at_any_descriptor_leaves_none_open(world: World, holder: WireClient) -> None:
    before = picture(world.device)
    for failing_call in (1, 2, 3):
        world.driver.follow(failing(failing_call))
        with pytest.raises(DriverError, match="export_fd"):
            world.service.redeem(holder.session, 3)
        assert picture(world.device) == before
    world.driver.follow(failing_named("map", 1))
    assert len(picture(world.device).mappings) == 0
