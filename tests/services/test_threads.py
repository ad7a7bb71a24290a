"""Clients, the filler, captures and audits at one device at once: nothing stands still, and the books always sum."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import pytest

from kvcluster.driver.gate import Meanwhile, capture_gate
from kvcluster.errors import DriverError, NotShareable, OutOfBudget
from kvcluster.services.filler import Filler
from tests.services.device_world import Device, DeviceWorld

ROUNDS = 16


@pytest.fixture
def gpu(on_both: str) -> str:
    return on_both


@pytest.fixture
def world(gpu: str) -> Iterator[DeviceWorld]:
    world = DeviceWorld(Device(capacity=40, pool=6), gpu)
    yield world
    world.clear()


def publish_and_join(world: DeviceWorld, tenant: str) -> None:
    """A request shares, another joins it, both end; with too little memory for everybody."""
    client = world.client(tenant)
    for number in range(ROUNDS):
        owner, joiner = client.open(), client.open()
        with suppress(OutOfBudget, NotShareable, DriverError):
            owner.grow(90, 6)
            prefix = owner.share(64)
            client.ask(joiner.join_op(prefix, 90), *joiner.grow_ops(100, 3))
        owner.close(64 * (number % 2))  # what it still has counts as mapped, unless it is retained
        joiner.close()
        if number % 8 == 7:  # a process ends, and with it what may be mapped
            world.service.gone(client.session)
            client = world.client(tenant)
    world.service.gone(client.session)


def wait_for(threads: Iterable[Future[None]]) -> None:
    """Raises whatever one of them raised."""
    for thread in threads:
        thread.result(timeout=120)


@pytest.mark.parametrize("meanwhile", list(Meanwhile))
def test_clients_the_filler_captures_and_audits_go_on_side_by_side(world: DeviceWorld, meanwhile: Meanwhile) -> None:
    over = threading.Event()
    filler = Filler(world.service.fill)

    def capture() -> None:
        while not over.wait(0.001):
            with capture_gate.closed(meanwhile):
                os.sched_yield()
            filler.wake()

    def audit() -> None:
        while not over.wait(0.001):
            with suppress(DriverError):  # the hardware is not asked while a graph is captured
                world.service.audit()
            world.service.all_pushes()

    with ThreadPoolExecutor(6) as threads:
        others = [threads.submit(act) for act in (filler.run, capture, audit)]
        try:
            wait_for([threads.submit(publish_and_join, world, tenant) for tenant in ("", "", "acme")])
        finally:
            over.set()
            filler.end()
            wait_for(others)
    seen = world.seen()
    assert {name.split("/")[0] for name in seen.accounts} <= {"free", "retained"}
    world.service.close()
    assert dict(world.seen().accounts) == {"free": seen.capacity_bytes}
    assert world.driver.memory_info().held_bytes == 0
