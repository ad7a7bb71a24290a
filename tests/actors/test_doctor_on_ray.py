"""The doctor beside a living cluster: actors and their memory are no leftovers, until a device dies under a client."""

from __future__ import annotations

import ray

from kvcluster.services.doctor import Finding
from kvcluster.services.doctor.leftovers import judge, processes
from tests.actors.world import TIMEOUT_S, World, kill_and_wait


def left_by(pid: int) -> list[Finding]:
    return [found for found in judge(tuple(processes())) if f"process {pid} " in found.sentence]


def test_a_device_and_its_client_are_no_leftovers_until_the_device_is_killed_under_it(world: World) -> None:
    device = world.device(world.settings())
    client = world.client(device)
    pid, _ = ray.get(client.session.remote(), timeout=TIMEOUT_S)
    ray.get(client.commit.remote(9), timeout=TIMEOUT_S)
    assert {device.address.pid, pid} <= {seen.pid for seen in processes()}
    assert left_by(device.address.pid) == left_by(pid) == []
    kill_and_wait(device.address.pid)
    [found] = left_by(pid)
    assert "holds 36.0 KiB of memory whose device is gone" in found.sentence
