"""A device, a request that holds six windows, and a prefix of four of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.services.device_world import Device, DeviceWorld, Request

OpenWorld = Callable[[Device], DeviceWorld]


@pytest.fixture
def world(open_device: OpenWorld) -> DeviceWorld:
    return open_device(Device())


@pytest.fixture
def owner(world: DeviceWorld) -> Request:
    """A request with six windows, 96 tokens."""
    request = world.client().open()
    request.grow(96, 6)
    return request


@pytest.fixture
def prefix(owner: Request) -> int:
    """The first 70 tokens of it: four windows."""
    return owner.share(70)
