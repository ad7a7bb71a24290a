"""Whose windows a frame's ticket hands over, how often, and until when."""

from __future__ import annotations

import pytest

from kvcluster.errors import NotAllowed, SessionEnded, UnknownRequest
from tests.services.world import WireClient, World, commit_op, grow_ops, refusal, release_op


def test_a_ticket_is_redeemed_any_number_of_times_until_its_windows_are_released(
    world: World, client: WireClient
) -> None:
    client.opened(1)
    client.ask(*grow_ops(1, 1, 3))
    first = world.service.handles(client.session, client.seq)
    assert len(first) == 3
    assert world.service.handles(client.session, client.seq) == first
    ticket = client.seq
    client.ask(release_op(1, 1, 1))
    with pytest.raises(NotAllowed, match="no ticket"):
        world.service.handles(client.session, ticket)


def test_a_ticket_names_the_windows_of_a_whole_frame_in_its_order(world: World, client: WireClient) -> None:
    client.opened(1)
    client.opened(2)
    client.ask(*grow_ops(1, 1, 1), *grow_ops(2, 2, 2))
    both = world.service.handles(client.session, client.seq)
    assert len(set(both)) == 3
    client.ask(*grow_ops(1, 3, 2))
    assert not set(world.service.handles(client.session, client.seq)) & set(both)


def test_a_handle_that_changed_hands_voids_the_old_ticket_and_not_the_new_one(world: World, client: WireClient) -> None:
    client.opened(1)
    client.opened(2)
    client.ask(*grow_ops(1, 1, 2))
    old = client.seq
    handles = world.service.handles(client.session, old)
    client.ask(release_op(1, 0, 2), *grow_ops(2, 2, 2))
    assert set(world.service.handles(client.session, client.seq)) == set(handles)
    with pytest.raises(NotAllowed):
        world.service.handles(client.session, old)


def test_nobody_redeems_another_sessions_ticket(world: World, client: WireClient) -> None:
    other = WireClient(world.service)
    client.opened(1)
    client.ask(*grow_ops(1, 1, 2))
    with pytest.raises(NotAllowed):
        world.service.handles(other.session, client.seq)
    with pytest.raises(SessionEnded):
        world.service.handles("nobody", client.seq)


def test_a_frame_that_committed_nothing_has_no_ticket(world: World, client: WireClient) -> None:
    client.opened(1)
    with pytest.raises(NotAllowed):
        world.service.handles(client.session, client.seq)
    assert isinstance(refusal(client.ask(commit_op(7, 1, 1))), UnknownRequest)
