"""Who counts as running, and so must be left room for one growth: whoever has windows of its own, or shares some."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvcluster.errors import DriverError, NotAllowed, OutOfBudget
from kvcluster.testing.faulty_driver import failing_named
from tests.services.device_world import GRANULE, Client, Device, DeviceWorld, Request, refused, windows


@pytest.fixture
def world() -> Iterator[DeviceWorld]:
    world = DeviceWorld(Device(capacity=16, pool=0))
    yield world
    world.clear()


@pytest.fixture
def client(world: DeviceWorld) -> Client:
    return world.client()


def shared(client: Client) -> tuple[Request, int]:
    """A request all of whose windows are a prefix's, and that prefix."""
    request = client.open()
    request.grow(64, 4)
    return request, request.share(64)


def running(world: DeviceWorld) -> int:
    return world.seen().running_requests


def room(client: Client) -> int:
    """Granules that a newcomer could have: what is free, but for one growth of each that runs."""
    newcomer = client.open()
    error = refused(OutOfBudget, lambda: newcomer.grow(256, 16))
    newcomer.close()
    assert isinstance(error, OutOfBudget)
    return error.free // GRANULE


def test_a_request_that_shared_all_that_it_had_still_runs(world: DeviceWorld, client: Client) -> None:
    shared(client)
    assert running(world) == 1
    assert room(client) == 11


def test_a_request_that_left_all_that_it_shared_runs_no_longer(world: DeviceWorld, client: Client) -> None:
    request, prefix = shared(client)
    request.leave(prefix)
    assert running(world) == 0
    client.open().grow(256, 16)


def test_one_that_gave_back_its_windows_and_left_in_one_group_runs_no_longer(
    world: DeviceWorld, client: Client
) -> None:
    request, prefix = shared(client)
    request.grow(96, 2)
    client.ask(request.release_op(windows(4, 2)), request.leave_op(prefix))
    assert running(world) == 0


def test_one_that_left_and_has_windows_of_its_own_still_runs(world: DeviceWorld, client: Client) -> None:
    request, prefix = shared(client)
    request.grow(96, 2)
    request.leave(prefix)
    assert running(world) == 1


def test_a_request_that_joined_runs_though_nothing_is_its_own(world: DeviceWorld, client: Client) -> None:
    _, prefix = shared(client)
    joiner = client.open()
    joiner.join(prefix, 70)
    assert running(world) == 2
    assert room(client) == 10
    joiner.leave(prefix)
    assert running(world) == 1
    assert room(client) == 11


def test_a_join_that_is_undone_does_not_run(world: DeviceWorld, client: Client) -> None:
    _, prefix = shared(client)
    joiner = client.open()
    world.driver.follow(failing_named("create", 1))
    refused(DriverError, lambda: client.ask(joiner.join_op(prefix, 70), *joiner.grow_ops(96, 2)))
    world.healed()
    assert running(world) == 1
    assert room(client) == 11


def test_a_leave_that_is_undone_still_runs(world: DeviceWorld, client: Client) -> None:
    request, prefix = shared(client)
    refused(NotAllowed, lambda: client.ask(request.leave_op(prefix), request.release_op(windows(9, 1))))
    assert running(world) == 1
    assert room(client) == 11


def test_a_seal_that_fails_leaves_it_running_until_it_gives_its_windows_back(
    world: DeviceWorld, client: Client
) -> None:
    request = client.open()
    request.grow(64, 4)
    prefix = request.publish(64).prefix
    world.driver.follow(failing_named("seal", 2))
    assert request.seal(prefix).refusal
    world.healed()
    assert running(world) == 1
    request.release(windows(0, 4))
    assert running(world) == 0


def test_what_may_still_be_mapped_of_a_prefix_quarantines_its_request(world: DeviceWorld, client: Client) -> None:
    request, prefix = shared(client)
    request.leave(prefix, "quarantined")
    refused(NotAllowed, lambda: request.grow(64, 4))
    assert running(world) == 0
    request.close()
    assert world.granules("prefix") == 4  # until the process is gone
    world.service.gone(client.session)
    assert world.granules("free") == 16
