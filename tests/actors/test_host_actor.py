"""Host actors: found or made, one a shape and node, and gone when nobody uses them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import ray
from typer.testing import CliRunner

from actors.audits import audit_devices
from actors.host_proxies import open_page_port, open_page_session
from actors.hosts import Host, find_host, host_spec
from kvcluster.cli.main import app
from kvcluster.config import ConfigError
from kvcluster.failpoints import Failpoint
from kvcluster.geometry.layout import Layout
from kvcluster.geometry.model import KvGeometry
from kvcluster.services.asks import Grow
from kvcluster.services.pages.statistics import PageStatistics
from kvcluster.services.sequence import SequenceSpec
from tests.actors.client import GEOMETRY
from tests.actors.host_client import HostClient
from tests.actors.world import (
    GRANULE,
    TIMEOUT_S,
    World,
    armed_with,
    eventually,
    has_ended,
    host_actors,
    is_whole,
    kill_and_wait,
)

BLOCK_BYTES = 16 * GEOMETRY.token_bytes  # a granule's, too
OTHER = KvGeometry.uniform(layers=3, kv_heads=1, head_dim=16, element_bytes=4)


def host(world: World, geometry: KvGeometry = GEOMETRY, **changes: object) -> Host:
    settings = world.settings(**{"host_memory": 32 * BLOCK_BYTES, **changes})
    return find_host(geometry, world.node_id, settings)


def test_eight_creators_at_once_get_one_host_actor(world: World) -> None:
    together = threading.Barrier(8)

    def create(_: int) -> int:
        together.wait(TIMEOUT_S)
        return host(world).address.pid

    with ThreadPoolExecutor(8) as creators:
        assert len(set(creators.map(create, range(8)))) == 1


def test_pages_in_use_are_found_by_the_same_size_and_shape_alone_and_refused_with_another_quota(world: World) -> None:
    first = host(world)
    port = open_page_port(first)
    assert host(world).address == first.address
    with pytest.raises(
        ConfigError, match=r"host_memory is 64.0 KiB, and .* is open .* with 128.0 KiB: give host_memory 131072"
    ):
        host(world, host_memory=16 * BLOCK_BYTES)
    with pytest.raises(ConfigError, match=r"is open .* with the tenant_quotas \{\}: name the same"):
        host(world, tenant_quotas={"acme": 4 * GRANULE})
    other = host(world, OTHER)
    assert other.address.pid != first.address.pid
    longer = host_spec(GEOMETRY, world.node_id, world.settings(host_memory=32 * BLOCK_BYTES, block_size=32))
    assert longer.settings.name not in {first.address.name, other.address.name}
    port.close()


def test_pages_that_nobody_uses_are_made_anew_for_whoever_asks_for_another_size(world: World) -> None:
    first = host(world)
    second = host(world, host_memory=16 * BLOCK_BYTES)
    assert has_ended(first.address.pid, TIMEOUT_S)
    assert (second.address.name, second.address.capacity_bytes) == (first.address.name, 16 * BLOCK_BYTES)


def test_less_memory_than_a_block_and_more_than_the_machine_has_are_a_sentence_each(world: World) -> None:
    with pytest.raises(ConfigError, match=r"host_memory is 1.0 KiB, and a block of 16 tokens of this model takes 4.0"):
        host(world, host_memory="1KiB")
    with pytest.raises(ConfigError, match=r"host_memory is .*, and this machine has .* left: give less"):
        host(world, host_memory="1000TiB")
    assert host_actors() == {}


def test_pages_without_sessions_leave_and_who_comes_meanwhile_is_served_by_them_or_the_next(
    world: World,
) -> None:
    settings, pause = world.settings(host_memory=32 * BLOCK_BYTES, idle_exit_s=0.2), threading.Event()
    pid = find_host(GEOMETRY, world.node_id, settings).address.pid
    for moment in range(3):
        pause.wait(0.15 * moment)  # before, while and after they leave
        port = open_page_session(GEOMETRY, world.node_id, settings)
        memory = port.memory(SequenceSpec(GEOMETRY, Layout.TOKEN_MAJOR, 64))
        port.one(Grow(memory, 64))
        memory.close()
        port.close()
    assert has_ended(pid, TIMEOUT_S)


def test_an_audit_counts_host_pages_beside_the_devices(world: World) -> None:
    found = host(world)
    port = open_page_port(found)
    memory = port.memory(SequenceSpec(GEOMETRY, Layout.TOKEN_MAJOR, 64))
    port.one(Grow(memory, 64))
    [mine] = [each for each in audit_devices() if each.device == found.address.name]
    assert (mine.node_id, mine.complaint) == (world.node_id, None)
    assert isinstance(mine.figures, PageStatistics)
    assert (mine.figures.free_bytes, mine.figures.peak_used_bytes) == (28 * BLOCK_BYTES, 4 * BLOCK_BYTES)
    lines = CliRunner().invoke(app, ["audit"]).stdout.splitlines()
    place = lines.index(f"{found.address.name} on node {world.node_id[:8]}: 128.0 KiB, and all sums")
    assert "1 request 16.0 KiB" in lines[place + 1]
    assert lines[place + 2] == "  blocks    32 of 16 tokens, 28 free"
    assert lines[place + 7] == "  lookups   0, found 0 of 0 tokens"
    memory.close()
    port.close()


def test_a_client_killed_while_its_blocks_are_given_to_it_leaves_no_byte(world: World, tmp_path: Path) -> None:
    here = tmp_path / "reached"  # the host has committed, and answers when the file is gone
    settings = world.settings(host_memory=32 * BLOCK_BYTES)
    env = armed_with(f"{Failpoint.DEVICE_STORED}=hang:{here}")
    found = find_host(GEOMETRY, world.node_id, settings, env=env)
    client = world.started(HostClient, found, GEOMETRY, num_cpus=0)
    pid = ray.get(client.pid.remote(), timeout=TIMEOUT_S)
    client.hold.remote(9)
    eventually(here.exists, "the host is at its point")
    kill_and_wait(pid)
    here.unlink()
    eventually(lambda: is_whole(found.actor), "every byte is free, and its session is gone")
    seen = ray.get(found.actor.audit.remote(), timeout=TIMEOUT_S)
    assert (seen.frames, seen.peak_used_bytes, seen.free_bytes) == (1, 9 * BLOCK_BYTES, 32 * BLOCK_BYTES)


def test_bytes_that_are_no_frame_end_nothing_and_an_error_of_another_kind_ends_the_actor(world: World) -> None:
    found = host(world)
    with pytest.raises(ray.exceptions.RayTaskError):
        ray.get(found.actor.frame.remote(b""), timeout=TIMEOUT_S)
    assert ray.get(found.actor.audit.remote(), timeout=TIMEOUT_S).free_bytes == 32 * BLOCK_BYTES
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(found.actor.frame.remote(None), timeout=TIMEOUT_S)
