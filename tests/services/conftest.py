"""Worlds that are cleared after the test, whatever it left on purpose; on the host, or on a stand-in's GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kvcluster.testing.stand_in_cuda import environment, fresh_stand_in
from tests.nursery import Nursery
from tests.services.device_world import Device, DeviceWorld
from tests.services.world import GRANULE, Sizes, WireClient, World


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Where clients in processes of their own come from; those of a stand-in's GPU find its library."""
    opened = Nursery("tests.services.child", environment())
    yield opened
    opened.close()


@pytest.fixture
def gpu() -> str:
    """The host. A module that runs on both says `gpu = on_both`."""
    return ""


@pytest.fixture(params=["host", "cuda:0"])
def on_both(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "host":
        yield ""
        return
    with fresh_stand_in(GRANULE=GRANULE):
        yield request.param


@pytest.fixture
def open_world(gpu: str) -> Iterator[Callable[..., World]]:
    worlds: list[World] = []

    def open_one(sizes: Sizes | None = None) -> World:
        worlds.append(World(sizes or Sizes(), gpu))
        return worlds[-1]

    yield open_one
    for world in worlds:
        world.clear()


@pytest.fixture
def world(open_world: Callable[..., World]) -> World:
    return open_world()


@pytest.fixture
def client(world: World) -> WireClient:
    return WireClient(world.service)


@pytest.fixture
def open_device() -> Iterator[Callable[[Device], DeviceWorld]]:
    """A device alone, whose clients are frames."""
    worlds: list[DeviceWorld] = []

    def open_one(device: Device) -> DeviceWorld:
        worlds.append(DeviceWorld(device))
        return worlds[-1]

    yield open_one
    for world in worlds:
        world.clear()
