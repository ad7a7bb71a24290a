"""Handles created ahead, and a capacity that follows what the hardware has."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from itertools import pairwise

import pytest

from kvcluster.driver.gate import Meanwhile, capture_gate
from kvcluster.errors import NeverFits
from kvcluster.memory.pool import MOST_AT_ONCE
from kvcluster.services.filler import Filler
from kvcluster.testing.faulty_driver import failing_every
from tests.services.device_world import GRANULE, TOKENS, Device, DeviceWorld, refused, windows

OpenWorld = Callable[[Device], DeviceWorld]


@pytest.fixture
def world(open_device: OpenWorld) -> DeviceWorld:
    return open_device(Device(capacity=24, pool=10))


def creates(world: DeviceWorld) -> int:
    return world.service.statistics().driver_calls.get("create", 0)


def test_with_the_pool_filled_a_growth_creates_nothing(world: DeviceWorld) -> None:
    request = world.client().open()
    while world.service.fill():
        world.seen()
    assert (world.pooled(), world.seen().created_ahead) == (10, 10)
    before = creates(world)
    request.grow(160, 10)
    assert creates(world) == before
    assert not world.service.has_pushes


def test_a_step_creates_a_few_and_says_whether_there_is_more(world: DeviceWorld) -> None:
    world.client()
    steps = []
    while not steps or steps[-1]:
        before = creates(world)
        steps.append(world.service.fill())
        assert creates(world) - before <= 4
    assert len(steps) > 2


def test_no_more_is_created_than_is_free(world: DeviceWorld) -> None:
    client = world.client()
    client.open().grow(256, 16)
    client.open().grow(64, 4)
    while world.service.fill():
        pass
    assert world.pooled() == 4


def test_a_create_that_fails_ends_the_filling_and_nothing_else(world: DeviceWorld) -> None:
    world.client()
    world.driver.follow(failing_every("create"))
    assert world.service.fill() is False
    assert world.pooled() == 0
    world.healed()
    assert world.service.fill() is True


def test_without_a_client_nothing_is_created(world: DeviceWorld) -> None:
    assert world.service.fill() is False
    client = world.client()
    world.service.fill()
    world.service.disconnected(client.session)
    assert (world.pooled(), world.service.fill()) == (0, False)
    world.service.close()
    assert world.service.fill() is False


def test_the_filler_fills_each_time_that_it_is_woken_and_ends_when_it_is_told() -> None:
    calls, filled = [2, 0, 1], threading.Semaphore(0)

    def fill() -> bool:
        calls[0] -= 1
        filled.release()
        return calls[0] % 2 == 1

    filler = Filler(fill)
    thread = threading.Thread(target=filler.run)
    thread.start()
    for _ in range(2):
        filler.wake()
        for _ in range(2):
            assert filled.acquire(timeout=30)
    filler.end()
    filler.end()
    thread.join(timeout=30)
    assert not thread.is_alive()


def test_a_filler_that_is_told_to_end_first_never_fills() -> None:
    filler = Filler(lambda: pytest.fail("it filled"))
    filler.end()
    filler.run()


def test_the_filler_waits_for_a_capture_and_holds_up_nobody_meanwhile(world: DeviceWorld) -> None:
    request = world.client().open()
    with capture_gate.closed(Meanwhile.WAIT):
        filling = threading.Thread(target=world.service.fill)
        filling.start()
        while capture_gate.waiting == 0:
            os.sched_yield()
        assert creates(world) == 0  # which takes the device's lock
    filling.join(timeout=30)
    assert not filling.is_alive()
    assert creates(world) > 0
    request.grow(16, 1)


# --- what a death leaves --------------------------------------------------------------------------------------------


def died_with_200_of_300(open_device: OpenWorld) -> DeviceWorld:
    """The device, which has one other client."""
    world = open_device(Device(capacity=300, pool=8))
    world.client()
    dying = world.client()
    dying.open(max_tokens=200 * TOKENS).grow(200 * TOKENS, 200)
    world.service.gone(dying.session)
    return world


def test_what_a_dead_client_had_is_free_at_once_and_released_a_part_at_a_time(open_device: OpenWorld) -> None:
    world = died_with_200_of_300(open_device)
    assert (world.granules("free"), world.pooled()) == (300, 200 - MOST_AT_ONCE)
    steps = [world.pooled()]
    while world.service.fill():
        steps.append(world.pooled())
    steps.append(world.pooled())
    assert steps[-1] == 8
    assert all(0 < before - after <= MOST_AT_ONCE for before, after in pairwise(steps))


def test_who_asks_before_all_of_it_is_released_is_served(open_device: OpenWorld) -> None:
    world = died_with_200_of_300(open_device)
    world.client().open(max_tokens=290 * TOKENS).grow(290 * TOKENS, 290)
    assert (world.granules("request"), world.granules("free")) == (290, 10)


def test_without_a_client_all_of_it_goes_a_part_at_a_time(open_device: OpenWorld) -> None:
    world = died_with_200_of_300(open_device)
    for name in world.seen().sessions:
        world.service.gone(name)
    assert world.pooled() > 0
    while world.service.fill():
        assert world.granules("free") == 300
    assert world.pooled() == 0


# --- capacity -------------------------------------------------------------------------------------------------------


def test_a_device_takes_its_share_of_what_the_hardware_has_in_whole_granules(world: DeviceWorld) -> None:
    client = world.client()
    assert world.service.measure(0.52) == 12 * GRANULE
    assert world.seen().capacity_bytes == 12 * GRANULE
    refused(NeverFits, lambda: client.open(max_tokens=193))
    client.open(max_tokens=192).grow(192, 12)


def test_a_capacity_never_falls_below_what_is_claimed(world: DeviceWorld) -> None:
    client = world.client()
    request = client.open()
    request.grow(256, 16)
    while world.service.fill():
        pass
    assert world.service.measure(0.01) == 16 * GRANULE
    assert (world.granules("free"), world.pooled()) == (0, 0)
    request.release(windows(8, 8))
    assert world.service.measure(0.01) == 8 * GRANULE


def test_a_capacity_is_never_more_than_the_configured_one(world: DeviceWorld) -> None:
    world.client()
    world.service.measure(0.5)
    assert world.service.measure(100.0) == 24 * GRANULE
    assert world.granules("free") == 24


def test_what_cannot_be_released_when_the_capacity_falls_is_charged(world: DeviceWorld) -> None:
    world.client()
    while world.service.fill():
        pass
    world.driver.follow(failing_every("release"))
    world.service.measure(0.01)
    world.healed()
    seen = world.seen()
    assert seen.handles["quarantined"] == seen.accounts["quarantine"] == seen.capacity_bytes


def test_what_nobody_uses_makes_room_for_a_lower_capacity(open_device: OpenWorld) -> None:
    world = open_device(Device(capacity=16, pool=0))
    request = world.client().open()
    request.grow(192, 12)
    request.close(192)
    user = world.client().open()
    user.grow(32, 2)
    assert world.service.measure(0.25) == 4 * GRANULE
    assert world.granules("retained") == 0
    assert world.granules("request") == 2


def test_no_more_than_the_lower_capacity_takes_is_evicted(open_device: OpenWorld) -> None:
    world = open_device(Device(capacity=16, pool=0))
    client = world.client()
    for _ in range(3):
        request = client.open()
        request.grow(64, 4)
        request.close(64)
    assert world.service.measure(0.5) == 8 * GRANULE
    assert world.granules("retained") == 8
    assert world.service.measure(0.99) == 15 * GRANULE
    assert world.granules("retained") == 8
