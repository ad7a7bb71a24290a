"""Worlds that are cleared after the test, whatever it left on purpose."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.services.world import Sizes, WireClient, World


@pytest.fixture
def open_world() -> Iterator[Callable[..., World]]:
    worlds: list[World] = []

    def open_one(sizes: Sizes | None = None) -> World:
        worlds.append(World(sizes or Sizes()))
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
