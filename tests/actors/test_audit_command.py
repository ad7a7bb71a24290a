"""`kvcluster audit` on a real Ray: whose books sum, whose do not, who does not answer, and where no cluster is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray

from actors.audits import audit_devices, device_actors
from actors.devices import Device, actor_name
from kvcluster.services.statistics import AuditedDevice
from tests.actors.world import CAPACITY, GRANULE, TIMEOUT_S, World, eventually, has_ended

KVCLUSTER = str(Path(sys.executable).with_name("kvcluster"))


def run(*options: str, address: str | None = None) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, on the tests' cluster or another address."""
    environment = {**os.environ, "RAY_ADDRESS": address or ray.get_runtime_context().gcs_address}
    return subprocess.run(
        [KVCLUSTER, "audit", *options], env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


def holding(world: World, device: Device, granules: int) -> Any:
    """A client that has so many granules of the device."""
    client = world.client(device)
    ray.get(client.commit.remote(granules), timeout=TIMEOUT_S)
    return client


def of(device: Device, found: tuple[AuditedDevice, ...]) -> AuditedDevice:
    [mine] = [each for each in found if each.device == device.name]
    return mine


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_every_device_of_the_cluster_is_found_and_counted(world: World) -> None:
    one, two = (world.device(world.settings()) for _ in range(2))
    holding(world, one, 9)
    found = audit_devices()
    for device, held in ((one, 9), (two, 0)):
        each = of(device, found)
        assert (each.node_id, each.complaint) == (world.node_id, None)
        assert each.figures is not None
        assert each.figures.free_bytes == CAPACITY - held * GRANULE
        assert sum(each.figures.accounts.values()) == CAPACITY


def test_a_device_that_has_ended_is_not_listed(world: World) -> None:
    device = world.device(world.settings())
    assert actor_name(device.name, world.node_id) in device_actors()
    ray.kill(device.actor)
    eventually(lambda: actor_name(device.name, world.node_id) not in device_actors(), "its name is gone")
    assert [each for each in audit_devices() if each.device == device.name] == []


def test_a_device_that_does_not_answer_is_a_complaint(world: World) -> None:
    silent, well = (world.device(world.settings()) for _ in range(2))
    with stopped(silent.address.pid):
        found = audit_devices(timeout_s=0.5)
    assert (of(silent, found).figures, of(silent, found).complaint) == (None, "it does not answer")
    assert of(well, found).complaint is None


def test_the_command_prints_accounts_handles_sessions_and_refusals_and_ends_with_0(world: World) -> None:
    device = world.device(world.settings())
    client = holding(world, device, 9)
    pid, _ = ray.get(client.session.remote(), timeout=TIMEOUT_S)
    done = run()
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    place = lines.index(f"{device.name} on node {world.node_id[:8]}: 256.0 KiB, and all sums")
    accounts, handles, sessions, prefixes, _, refusals = lines[place + 1 : place + 7]
    assert "free 220.0 KiB" in accounts
    assert "1 request 36.0 KiB" in accounts
    assert "out 36.0 KiB" in handles
    assert f"process {pid} live" in sessions
    assert prefixes.split() == ["prefixes", "none"]
    assert refusals.split() == ["refusals", "none"]


def test_the_object_has_every_figure_of_every_device(world: World) -> None:
    device = world.device(world.settings())
    done = run("--json")
    assert (done.returncode, done.stderr) == (0, "")
    [mine] = [each for each in json.loads(done.stdout)["devices"] if each["device"] == device.name]
    assert (mine["node_id"], mine["complaint"]) == (world.node_id, None)
    assert mine["figures"]["accounts"]["free"] == mine["figures"]["capacity_bytes"] == CAPACITY


def test_books_that_do_not_sum_are_one_sentence_and_exit_code_1(world: World) -> None:
    broken, well = (world.device(world.settings()) for _ in range(2))
    client = holding(world, broken, 9)
    ray.get(client.lose_a_page.remote(), timeout=TIMEOUT_S)
    done = run()
    assert done.returncode == 1
    [sentence] = done.stderr.splitlines()
    assert sentence.startswith(f"kvcluster: device {broken.name} on node {world.node_id[:8]}: held by the hardware: ")
    assert f"{well.name} on node" in done.stdout
    assert has_ended(broken.address.pid, TIMEOUT_S)


def test_no_cluster_is_one_sentence_and_exit_code_2(node_id: str) -> None:
    done = run(address="nonsense")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "kvcluster: no Ray cluster answers at 'nonsense': start it, or unset RAY_ADDRESS\n"


def test_the_option_wins_over_the_environment(node_id: str) -> None:
    done = run("--ray-address", "127.0.0.1:1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "kvcluster: no Ray cluster answers at '127.0.0.1:1': start it, or unset RAY_ADDRESS\n"
