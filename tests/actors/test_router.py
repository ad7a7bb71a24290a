"""Requests go where their prompt is known, as Serve routes them: two devices, a replica at each, and no model."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import ray
from ray import serve
from ray.serve.config import RequestRouterConfig

from actors.devices import living_device
from kvcluster.services.completion import CompletionRequest
from tests.actors.seat import APP, Caller, Place, Seat
from tests.actors.world import TIMEOUT_S, World, eventually, kill_and_wait

ROUTER = RequestRouterConfig(
    request_router_class="actors.router:PrefixRouter",
    request_router_kwargs={"poll_s": 0.05},
    request_routing_stats_period_s=0.2,
)
SEATS = {
    "num_replicas": 2,
    "max_ongoing_requests": 50,
    "ray_actor_options": {"num_cpus": 0},
    "request_router_config": ROUTER,
    "health_check_period_s": 0.5,
    "graceful_shutdown_wait_loop_s": 0.05,
    "graceful_shutdown_timeout_s": 0.5,
}


class Site:
    """Two devices, with a replica at each, and a caller that has spoken to both."""

    def __init__(self, world: World) -> None:
        settings = world.settings(devices=2)
        self.devices = settings.device_names
        self._seeds = itertools.count(1)
        self._world = world
        serve.start(proxy_location="Disabled")
        serve.run(serve.deployment(Seat, **SEATS).bind(settings, world.node_id), name=APP, route_prefix=None)
        self._caller: Any = world.started(Caller, num_cpus=0)

    def remembered_at(self, device: str) -> CompletionRequest:
        """A prompt that this one knows."""
        return eventually(lambda: self._remembered_at(device), f"prompts that nobody knows go to {device} too")

    def places(self, request: CompletionRequest) -> set[Place]:
        """Where eight requests go that begin with it, and have no whole block more."""
        following = [CompletionRequest((*request.prompt, *[900_000 + number] * 9)) for number in range(8)]
        return set(ray.get(self._caller.places.remote(following), timeout=TIMEOUT_S))

    def devices_of(self, request: CompletionRequest) -> set[str]:
        return {place.device for place in self.places(request)}

    def device_pid(self, device: str) -> int:
        actor = living_device(device, self._world.node_id)
        assert actor is not None
        pid: int = ray.get(actor.address.remote(), timeout=TIMEOUT_S).pid
        return pid

    def _remembered_at(self, device: str) -> CompletionRequest | None:
        """Of four prompts that come at once."""
        seeds = (next(self._seeds) for _ in range(4))
        requests = [CompletionRequest(tuple(range(1_000 * seed, 1_000 * seed + 64))) for seed in seeds]
        places = ray.get(self._caller.remember.remote(requests), timeout=TIMEOUT_S)
        there = (request for request, place in zip(requests, places, strict=True) if place.device == device)
        return next(there, None)


@pytest.fixture(scope="module")
def site(node_id: str) -> Iterator[Site]:
    world = World(node_id, itertools.count(2_000))
    yield Site(world)
    serve.shutdown()
    world.close()


def test_requests_go_to_the_device_that_knows_their_beginning(site: Site) -> None:
    for device in site.devices:
        request = site.remembered_at(device)
        eventually(lambda request=request, device=device: site.devices_of(request) == {device}, "they go there")


def test_while_a_replica_is_dead_its_requests_go_elsewhere_and_come_back_to_the_next_one(site: Site) -> None:
    device = site.devices[0]
    meanwhile, afterwards = site.remembered_at(device), site.remembered_at(device)
    eventually(lambda: site.devices_of(meanwhile) == {device}, "they go there")
    [seat] = site.places(meanwhile)
    kill_and_wait(seat.pid)
    assert site.devices_of(meanwhile) == {site.devices[1]}
    site.remembered_at(device)
    [next_one] = site.places(afterwards)
    assert next_one.device == device
    assert next_one.pid != seat.pid


def test_requests_never_fail_while_a_device_is_dead_and_go_by_what_the_next_one_knows(site: Site) -> None:
    device = site.devices[1]
    request = site.remembered_at(device)
    eventually(lambda: site.devices_of(request) == {device}, "they go there")
    pid = site.device_pid(device)
    kill_and_wait(pid)
    eventually(lambda: site.devices_of(request) == {site.devices[0]}, "a device that is dead is not preferred")
    another = site.remembered_at(device)
    eventually(lambda: site.devices_of(another) == {device}, "they go to the device that was started again")
    assert site.device_pid(device) != pid
