"""In which order replicas are offered a request, by what two devices tell; nobody serves here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ray.serve._private.common import DeploymentHandleSource, DeploymentID, RequestMetadata
from ray.serve.request_router import PendingRequest

from actors.devices import find_device
from actors.router import PrefixRouter
from actors.routes import Choice, Routes
from actors.routing_stats import RoutingStats
from kvcluster.services.completion import CompletionRequest
from kvcluster.services.routing.known import MOST_AHEAD
from tests.actors.seat import IDENTITY
from tests.actors.world import TIMEOUT_S, World

REQUEST = CompletionRequest(tuple(range(100)))


@dataclass(frozen=True)
class Chair:
    """What Serve tells of a replica."""

    replica_id: str
    routing_stats: dict[str, Any] = field(default_factory=dict, compare=False)


SILENT = Chair("silent")


def play(world: World, part: Callable[[Routes[Chair], list[Chair]], None]) -> None:
    """With routes that are in touch with two devices, and a chair at each."""
    settings = world.settings(devices=2)
    for name in settings.device_names:
        find_device(name, world.node_id, settings)
    told = [
        RoutingStats.of(IDENTITY, device=name, node_id=world.node_id, token_bytes=1) for name in settings.device_names
    ]
    chairs = [Chair(stats.device, stats.to_dict()) for stats in told]

    async def played() -> None:
        routes: Routes[Chair] = Routes(poll_s=0.01)
        routes.seat([*chairs, SILENT])
        assert routes.ranks(REQUEST) == [[SILENT]]
        deadline = time.monotonic() + TIMEOUT_S
        while _offered(routes) != {*chairs, SILENT}:
            assert time.monotonic() < deadline, "both devices answer"
            await asyncio.sleep(0.01)
        part(routes, chairs)
        routes.seat([SILENT])
        assert routes.ranks(REQUEST) == [[SILENT]]

    asyncio.run(played())


def _offered(routes: Routes[Chair]) -> set[Chair]:
    return {chair for rank in routes.ranks(REQUEST) for chair in rank}


def test_who_told_nothing_comes_last_and_whatever_a_request_is_it_is_offered(world: World) -> None:
    def part(routes: Routes[Chair], chairs: list[Chair]) -> None:
        for request in (REQUEST, CompletionRequest("a text"), CompletionRequest((-1,)), object()):
            first, *_, last = routes.ranks(request)
            assert len(first) == 1
            assert first[0] in chairs
            assert last == [SILENT]

    play(world, part)


def test_who_has_many_more_requests_than_the_other_is_not_first_until_they_ended(world: World) -> None:
    def part(routes: Routes[Chair], chairs: list[Chair]) -> None:
        [[usual], *_] = routes.ranks(REQUEST)
        for _ in range(MOST_AHEAD + 1):
            routes.sent(usual.replica_id)
        [[other], *_] = routes.ranks(REQUEST)
        assert other != usual
        for _ in range(MOST_AHEAD + 1):
            routes.ended(usual.replica_id)
            routes.sent(other.replica_id)
        assert routes.ranks(REQUEST)[0] == [usual]

    play(world, part)


def test_a_replica_that_died_is_offered_nothing_and_neither_is_one_that_is_not_named_any_more(world: World) -> None:
    def part(routes: Routes[Chair], chairs: list[Chair]) -> None:
        routes.gone(chairs[0].replica_id)
        assert _offered(routes) == {chairs[1], SILENT}
        routes.seat([SILENT])
        assert routes.ranks(REQUEST) == [[SILENT]]

    play(world, part)


def test_what_a_request_takes_is_counted_off_once_however_often_it_is_asked_where_it_goes(world: World) -> None:
    small, large = CompletionRequest((1,), max_tokens=2_000), CompletionRequest((2,), max_tokens=20_000)

    def part(routes: Routes[Chair], chairs: list[Chair]) -> None:
        choice = Choice()
        [[first], *_] = [routes.ranks(small, choice)[0] for _ in range(100)]
        [[other], *_] = routes.ranks(large)
        [[third], *_] = routes.ranks(small)
        assert (first != other, third) == (True, first)

    play(world, part)


def test_a_router_asks_for_a_request_that_waits_by_the_choice_that_was_made_for_it(node_id: str) -> None:
    """Serve's own object carries it, as a newer Serve might not let it."""
    router = PrefixRouter(DeploymentID("seats", "app"), DeploymentHandleSource.REPLICA)

    async def carried() -> list[object]:
        asked = PendingRequest([REQUEST], {}, RequestMetadata("request", "one"))
        seen: list[object] = []
        for _ in range(2):
            await router.choose_replicas([], asked)
            seen += [value for value in vars(asked).values() if isinstance(value, Choice)]
        return seen

    one, same = asyncio.run(carried())
    assert one is same


def test_a_router_that_fails_inside_offers_two_by_chance(node_id: str) -> None:
    """As before its state was made: nothing of it works."""
    router = PrefixRouter(DeploymentID("seats", "app"), DeploymentHandleSource.REPLICA)
    chairs = [Chair(str(number)) for number in range(5)]

    async def chosen() -> list[list[Chair]]:
        asked = PendingRequest([REQUEST], {}, RequestMetadata("request", "one"))
        return await router.choose_replicas(chairs, asked)

    [[one, other]] = asyncio.run(chosen())
    assert one in chairs
    assert other in chairs
    router.on_replica_actor_died("0")
    router.on_send_request("1")
    router.on_request_completed("1", "one")
