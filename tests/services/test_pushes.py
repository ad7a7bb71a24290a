"""What a device says unasked: give something back for an older request, and drop imports of what was destroyed."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from kvcluster.budget.quotas import Quotas
from kvcluster.errors import OutOfBudget
from kvcluster.ids import HandleId, ImportKey
from kvcluster.services.pushes import Pushes
from kvcluster.wire.socket import Forget, Push, Reclaim
from tests.services.device_world import GRANULE, Client, Device, DeviceWorld, refused, windows

OpenWorld = Callable[[Device], DeviceWorld]


@pytest.fixture
def world(open_device: OpenWorld) -> DeviceWorld:
    return open_device(Device(capacity=24))


def told(client: Client) -> tuple[Push, ...]:
    return client.service.pushes(client.session)


def imported(client: Client, *, seq: int | None = None, known: frozenset[ImportKey] = frozenset()) -> list[ImportKey]:
    """Redeem a frame's ticket as a process of its own would; the keys of what it was given a descriptor of."""
    descriptors = client.service.redeem(client.session, seq or client.seq, known=known)
    for fd in descriptors.fds:
        os.close(fd)
    return [handle.key for handle in descriptors.handles if handle.fd is not None]


# --- reclaim --------------------------------------------------------------------------------------------------------


def test_a_refused_growth_asks_younger_requests_of_other_sessions_for_what_is_missing_youngest_first(
    world: DeviceWorld,
) -> None:
    old, middle, young = (world.client() for _ in range(3))
    oldest = old.open(max_tokens=384)
    oldest.grow(64, 4)
    middle.open().grow(112, 7)
    young.open().grow(112, 7)
    assert not world.service.has_pushes
    refused(OutOfBudget, lambda: oldest.grow(288, 14))  # 6 are free
    assert world.service.has_pushes
    assert told(young) == (Reclaim(size_bytes=7 * GRANULE, younger_than=oldest.arrival),)
    assert told(middle) == (Reclaim(size_bytes=GRANULE, younger_than=oldest.arrival),)
    assert told(old) == ()
    assert not world.service.has_pushes


def test_nobody_is_asked_twice_before_something_changed(world: DeviceWorld) -> None:
    old, young = world.client(), world.client()
    oldest = old.open(max_tokens=384)
    oldest.grow(64, 4)
    younger = young.open()
    younger.grow(256, 16)
    for _ in range(3):
        refused(OutOfBudget, lambda: oldest.grow(192, 8))
    assert told(young) == (Reclaim(size_bytes=4 * GRANULE, younger_than=oldest.arrival),)
    refused(OutOfBudget, lambda: oldest.grow(192, 8))
    assert told(young) == ()
    younger.release(windows(14, 2))
    refused(OutOfBudget, lambda: oldest.grow(192, 8))
    assert told(young) == (Reclaim(size_bytes=2 * GRANULE, younger_than=oldest.arrival),)


def test_a_plea_ends_when_the_one_it_was_for_is_served_or_over(world: DeviceWorld) -> None:
    old, young = world.client(), world.client()
    oldest = old.open(max_tokens=384)
    oldest.grow(64, 4)
    young.open().grow(256, 16)
    refused(OutOfBudget, lambda: oldest.grow(192, 8))
    told(young)
    oldest.grow(128, 4)
    refused(OutOfBudget, lambda: oldest.grow(192, 4))
    assert told(young) == (Reclaim(size_bytes=4 * GRANULE, younger_than=oldest.arrival),)


def test_a_young_request_asks_nobody_and_older_ones_are_never_asked(world: DeviceWorld) -> None:
    old, young = world.client(), world.client()
    old.open().grow(256, 16)
    waiting = young.open()
    refused(OutOfBudget, lambda: waiting.grow(256, 16))
    assert world.service.all_pushes() == ()


def test_the_oldest_that_waits_asks_too(world: DeviceWorld) -> None:
    old, young = world.client(), world.client()
    waiting = old.open()
    younger = young.open()
    younger.grow(256, 16)
    refused(OutOfBudget, lambda: waiting.grow(256, 16))
    assert world.service.all_pushes() == (
        (young.session, Reclaim(size_bytes=8 * GRANULE, younger_than=waiting.arrival)),
    )


def test_who_alone_shares_what_is_missing_is_asked_for_it(open_device: OpenWorld) -> None:
    world = open_device(Device(capacity=8, pool=0))
    old, young = world.client(), world.client()
    oldest, younger = old.open(max_tokens=128), young.open(max_tokens=128)
    oldest.grow(16, 1)
    younger.grow(96, 6)
    prefix = younger.share(96)
    refused(OutOfBudget, lambda: oldest.grow(64, 3))
    assert told(young) == (Reclaim(size_bytes=2 * GRANULE, younger_than=oldest.arrival),)
    refused(OutOfBudget, lambda: oldest.grow(64, 3))
    assert told(young) == ()
    younger.leave(prefix)
    assert told(young) == ()
    oldest.grow(64, 3)


def test_nobody_is_asked_for_what_others_share_too(open_device: OpenWorld) -> None:
    world = open_device(Device(capacity=9, pool=0))
    old, young, also = (world.client() for _ in range(3))
    oldest, younger, joiner = (client.open(max_tokens=128) for client in (old, young, also))
    oldest.grow(16, 1)
    younger.grow(64, 4)
    prefix = younger.share(64)
    younger.grow(80, 1)
    joiner.join(prefix, 70)
    refused(OutOfBudget, lambda: oldest.grow(128, 7))
    assert told(young) == (Reclaim(size_bytes=GRANULE, younger_than=oldest.arrival),)
    assert told(also) == ()


def test_who_plans_a_prefix_on_what_it_alone_shares_is_asked_for_both(open_device: OpenWorld) -> None:
    world = open_device(Device(capacity=9, pool=0))
    old, young = world.client(), world.client()
    oldest, younger = old.open(max_tokens=128), young.open(max_tokens=128)
    oldest.grow(16, 1)
    younger.grow(64, 4)
    younger.share(64)
    younger.grow(96, 2)
    younger.publish(96)
    refused(OutOfBudget, lambda: oldest.grow(128, 7))
    assert told(young) == (Reclaim(size_bytes=5 * GRANULE, younger_than=oldest.arrival),)
    younger.client.ask(younger.close_op())


def test_a_request_at_its_tenant_s_quota_asks_its_tenant_alone(open_device: OpenWorld) -> None:
    world = open_device(Device(capacity=64, quotas=Quotas({"acme": 12 * GRANULE})))
    mine, also, other = world.client("acme"), world.client("acme"), world.client()
    oldest = mine.open(max_tokens=128)
    oldest.grow(64, 4)
    also.open(max_tokens=128).grow(112, 7)
    other.open().grow(128, 8)
    refused(OutOfBudget, lambda: oldest.grow(96, 2))
    assert [session for session, _ in world.service.all_pushes()] == [also.session]


def test_a_session_that_ended_is_told_nothing(world: DeviceWorld) -> None:
    old, young = world.client(), world.client()
    oldest = old.open(max_tokens=384)
    oldest.grow(64, 4)
    young.open().grow(256, 16)
    refused(OutOfBudget, lambda: oldest.grow(192, 8))
    world.service.disconnected(young.session)
    assert world.service.all_pushes() == ()
    assert told(young) == ()


# --- forget ---------------------------------------------------------------------------------------------------------


def test_whoever_imported_a_handle_is_told_when_it_is_destroyed_and_nobody_else(open_device: OpenWorld) -> None:
    world = open_device(Device(capacity=24, pool=0))
    client, other = world.client(), world.client()
    request = client.open()
    request.grow(48, 3)
    keys = imported(client)
    request.release(windows(0, 3))
    assert told(other) == ()
    [push] = told(client)
    assert isinstance(push, Forget)
    assert {HandleId(*handle) for handle in push.handles} == {key.handle for key in keys}
    assert told(client) == ()


def test_what_was_never_handed_to_a_process_is_destroyed_without_a_word(open_device: OpenWorld) -> None:
    world = open_device(Device(capacity=24, pool=0))
    client = world.client()
    request = client.open()
    request.grow(48, 3)
    assert len(client.handles()) == 3  # borrowed, as a client in this very process does
    request.release(windows(0, 3))
    assert not world.service.has_pushes


def test_joiners_too_are_told_of_a_prefix_s_handles(world: DeviceWorld) -> None:
    owner, other = world.client().open(), world.client()
    owner.grow(64, 4)
    prefix = owner.share(64)
    joiner = other.open()
    joiner.join(prefix, 64)
    keys = imported(other)
    assert all(key.is_sealed for key in keys)
    owner.leave(prefix)
    joiner.leave(prefix)
    [push] = told(other)
    assert isinstance(push, Forget)
    assert {HandleId(*handle) for handle in push.handles} == {key.handle for key in keys}


def test_nothing_waits_where_nothing_was_said() -> None:
    pushes = Pushes()
    assert (pushes.has_any, pushes.drain("nobody"), pushes.drain_all()) == (False, (), ())


# --- what a client keeps --------------------------------------------------------------------------------------------


def test_a_redemption_makes_no_descriptor_of_what_the_client_has(world: DeviceWorld) -> None:
    client = world.client()
    request = client.open()
    request.grow(64, 4)
    keys = imported(client)
    before = world.service.statistics().driver_calls["export_fd"]
    descriptors = client.service.redeem(client.session, client.seq, known=frozenset(keys[1:3]))
    assert [handle.fd is None for handle in descriptors.handles] == [False, True, True, False]
    assert ([handle.key for handle in descriptors.handles], descriptors.total) == (keys, 4)
    assert world.service.statistics().driver_calls["export_fd"] - before == len(descriptors.fds) == 2
    for fd in descriptors.fds:
        os.close(fd)


def test_a_sealed_handle_is_another_import_than_before_its_seal(world: DeviceWorld) -> None:
    client = world.client()
    owner = client.open()
    owner.grow(64, 4)
    writable = imported(client)
    owner.share(64)
    sealed = imported(client, known=frozenset(writable))
    assert [key.handle for key in sealed] == [key.handle for key in writable]
    assert not set(sealed) & set(writable)


def test_a_client_is_given_the_handles_that_it_has_imported(open_device: OpenWorld) -> None:
    world = open_device(Device(capacity=32, pool=8))
    first, second = world.client(), world.client()
    mine, theirs = first.open(), second.open()
    mine.grow(48, 3)
    known = frozenset(imported(first))
    theirs.grow(48, 3)
    imported(second)
    mine.release(windows(0, 3))
    theirs.release(windows(0, 3))  # newer in the pool
    mine.grow(48, 3)
    assert imported(first, known=known) == []


def test_another_tenant_never_gets_a_handle_that_a_process_was_given(open_device: OpenWorld) -> None:
    world = open_device(Device(capacity=32, pool=8))
    first, second = world.client("a"), world.client("b")
    handed, borrowed = first.open(), first.open()
    handed.grow(32, 2)
    keys = {key.handle for key in imported(first)}
    borrowed.grow(32, 2)
    for request in (handed, borrowed):
        request.release(windows(0, 2))
    second.open().grow(64, 4)
    assert not keys & {key.handle for key in imported(second)}
