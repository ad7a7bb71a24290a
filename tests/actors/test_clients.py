"""Two and more processes on one device: whose bytes are where, and when they are free again."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import ray

from actors.devices import Device
from kvcluster.errors import OutOfBudget
from tests.actors.world import CAPACITY, GRANULE, TIMEOUT_S, World, audit, eventually, kill_and_wait


def told(reference: Any) -> Any:
    return ray.get(reference, timeout=TIMEOUT_S)


def is_free(device: Device) -> bool:
    return audit(device).free_bytes == audit(device).capacity_bytes


def contents(pid: int) -> Counter[str]:
    """What each memory file of a process begins with, as the kernel shows it."""
    starts: Counter[str] = Counter()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        if os.readlink(fd).startswith("/memfd:"):
            with fd.open("rb") as file:
                starts[file.read(64).partition(b";")[0].decode(errors="replace")] += 1
    return starts


def test_what_two_processes_write_is_in_the_devices_memory_each_in_its_own(world: World) -> None:
    device = world.device(world.settings())
    clients = {name: world.client(device) for name in ("one", "two")}
    expected = {name: [f"{name}/{number}" for number in range(9)] for name in clients}
    for client in clients.values():
        assert told(client.commit.remote(9)) == 9 * GRANULE
    told([client.fill.remote(name) for name, client in clients.items()])
    for name, client in clients.items():
        assert told(client.starts.remote()) == expected[name]
    written = contents(device.address.pid)
    assert all(written[start] == 1 for starts in expected.values() for start in starts)
    assert audit(device).free_bytes == CAPACITY - 18 * GRANULE


def test_a_commit_of_more_windows_than_a_message_carries_descriptors_is_whole(world: World) -> None:
    device = world.device(world.settings(device_memory=1000 * GRANULE))
    client = world.client(device)
    assert told(client.commit.remote(600)) == 600 * GRANULE
    told(client.fill.remote("far"))
    assert told(client.starts.remote()) == [f"far/{number}" for number in range(600)]
    told(client.release.remote())
    assert audit(device).free_bytes == 1000 * GRANULE


def test_two_processes_share_the_capacity_and_a_refusal_has_the_figures(world: World) -> None:
    device = world.device(world.settings())
    one, two = world.client(device), world.client(device)
    told(one.commit.remote(50))
    with pytest.raises(OutOfBudget) as refused:
        told(two.commit.remote(20))
    assert refused.value.need == 20 * GRANULE
    assert refused.value.free <= 14 * GRANULE
    told(one.release.remote())
    assert told(two.commit.remote(20)) == 20 * GRANULE


def test_the_bytes_of_a_killed_client_are_free_once_it_is_dead(world: World) -> None:
    device = world.device(world.settings())
    client = world.client(device)
    pid, session = told(client.session.remote())
    told(client.commit.remote(30))
    assert audit(device).free_bytes == CAPACITY - 30 * GRANULE
    kill_and_wait(pid)
    eventually(lambda: is_free(device), "its bytes are free")
    assert session not in audit(device).sessions


def test_a_client_that_hangs_up_and_lives_keeps_its_bytes_until_it_dies(world: World) -> None:
    device = world.device(world.settings())
    client, other = world.client(device), world.client(device)
    pid, session = told(client.session.remote())
    told(client.commit.remote(30))
    told(client.hang_up.remote())
    eventually(lambda: audit(device).accounts.get("quarantine") == 30 * GRANULE, "its bytes are in quarantine")
    assert audit(device).sessions[session] == "orphaned"
    told(client.fill.remote("mine"))
    told(other.commit.remote(20))
    told(other.fill.remote("other"))
    assert told(client.starts.remote()) == [f"mine/{number}" for number in range(30)]
    told(other.release.remote())
    assert audit(device).free_bytes == CAPACITY - 30 * GRANULE
    kill_and_wait(pid)
    eventually(lambda: is_free(device), "its bytes are free")


def test_a_prefix_of_one_process_is_read_by_another_paid_once_and_outlives_its_publisher(world: World) -> None:
    device = world.device(world.settings())
    owner, joiner = world.client(device), world.client(device)
    told(owner.commit.remote(9))
    told(owner.fill.remote("shared"))
    prefix = told(owner.publish.remote(6))
    assert told(joiner.join.remote(prefix, 9)) == prefix.reusable_tokens == 6 * 16 - 1
    expected = [f"shared/{number}" for number in range(6)]
    assert told(joiner.starts.remote()) == expected
    assert told(owner.starts.remote())[:6] == expected
    assert audit(device).accounts[f"prefix/{prefix.number}"] == 6 * GRANULE
    assert audit(device).free_bytes == CAPACITY - 9 * GRANULE
    kill_and_wait(told(owner.session.remote())[0])
    eventually(lambda: audit(device).free_bytes == CAPACITY - 6 * GRANULE, "the publisher's own bytes are free")
    assert told(joiner.starts.remote()) == expected
    told(joiner.release.remote())
    assert is_free(device)
