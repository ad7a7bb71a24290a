"""Device actors: found or made, one a name, gone when nobody uses them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

import pytest
import ray
from ray.exceptions import RayActorError, RayError

from actors.device import DeviceActor
from actors.devices import actor_name, device_spec, find_device, living_device
from actors.proxies import open_session
from actors.seeking import SeekOwner
from kvcluster.attach.client import AttachClient
from kvcluster.config import ConfigError, Settings
from kvcluster.errors import BadFrame, DeviceUnreachable, InvariantBroken, NeverFits
from kvcluster.failpoints import Failpoint
from kvcluster.geometry.layout import Layout
from kvcluster.ids import new_session
from kvcluster.services.asks import Grow
from kvcluster.services.port import DevicePort
from kvcluster.services.sequence import SequenceSpec
from tests.actors.client import GEOMETRY
from tests.actors.world import CAPACITY, GRANULE, TIMEOUT_S, World, audit, eventually, has_ended


def test_eight_creators_at_once_get_one_device(world: World) -> None:
    settings = world.settings()
    together = threading.Barrier(8)

    def create(_: int) -> int:
        together.wait(TIMEOUT_S)
        return world.device(settings).address.pid

    with ThreadPoolExecutor(8) as creators:
        assert len(set(creators.map(create, range(8)))) == 1


def test_a_device_is_found_again_by_the_same_sizes_and_refused_with_others_while_it_has_a_session(
    world: World,
) -> None:
    settings = world.settings()
    device = world.device(settings)
    port = open_session(device.name, world.node_id, settings)
    assert world.device(settings).address == device.address
    for other in ({"device_memory": "512KiB"}, {"granule": "8KiB"}):
        with pytest.raises(ConfigError, match=f"device {device.name} is open on this cluster already, with 256.0 KiB"):
            find_device(device.name, world.node_id, settings.model_copy(update=other))
    assert port.in_touch()
    port.close()


def test_a_device_without_a_session_is_made_anew_for_whoever_asks_for_other_sizes(world: World) -> None:
    settings = world.settings()
    device = world.device(settings)
    for other in ({"device_memory": "512KiB"}, {"tenant_quotas": {"acme": 4 * GRANULE}}):
        before, changed = device, settings.model_copy(update=other)
        device = world.device(changed)
        assert has_ended(before.address.pid, TIMEOUT_S)
        assert world.device(changed).address == device.address
        assert audit(device).capacity_bytes == changed.host_sizes.capacity_bytes


def test_a_worker_that_asks_for_other_sizes_waits_for_the_one_that_is_on_its_way_out(world: World) -> None:
    settings = world.settings()
    [name] = settings.device_names
    changed = settings.model_copy(update={"device_memory": "512KiB"})
    before = open_session(name, world.node_id, settings)
    with ThreadPoolExecutor(1) as workers:
        asking = workers.submit(open_session, name, world.node_id, changed)
        assert not wait([asking], timeout=1.0).done
        before.close()
        port = asking.result(TIMEOUT_S)
    assert port.welcome.capacity_bytes == 2 * CAPACITY
    port.close()


class Disconnected:
    """A client whose connection breaks."""

    def stay(self, device: str, node_id: str, settings: Settings) -> None:
        port = open_session(device, node_id, settings)
        port.exchange.line.close()
        eventually(port.in_touch, "nothing is waited for that will not come")


def test_a_session_whose_connection_broke_while_its_device_lives_is_said_to_be_over_at_once(world: World) -> None:
    settings = world.settings()
    device, client = world.device(settings), world.started(Disconnected, num_cpus=0)
    with pytest.raises(DeviceUnreachable, match=f"device {device.name} .* it lives, and has ended the session"):
        ray.get(client.stay.remote(device.name, world.node_id, settings), timeout=TIMEOUT_S)
    assert world.device(settings).address.pid == device.address.pid


def test_a_ray_that_fails_while_an_owner_is_sought_is_an_owner_that_cannot_be_reached(world: World) -> None:
    device = world.device(world.settings())
    session = new_session()
    owner = SeekOwner(device.sought, Path(device.address.file), TIMEOUT_S)

    def opened(actor: object, attach: AttachClient) -> AttachClient:
        raise RayError("its control process is gone")

    with pytest.raises(DeviceUnreachable, match="control process is gone"):
        owner.next_one(0, session, opened, threading.Event())
    eventually(lambda: session not in audit(device).sessions, "the session that it began has ended")


def test_a_device_is_refused_with_other_quotas_and_bounds_its_tenants_by_those_that_it_has(world: World) -> None:
    settings = world.settings(tenant_quotas={"acme": 4 * GRANULE})
    device = world.device(settings)
    assert world.device(settings).address == device.address
    port = open_session(device.name, world.node_id, settings)
    with pytest.raises(ConfigError, match=r"with the tenant_quotas \{'acme': 16384\}: name the same"):
        find_device(device.name, world.node_id, settings.model_copy(update={"tenant_quotas": {}}))
    bounded = port.memory(SequenceSpec(GEOMETRY, Layout.TOKEN_MAJOR, 16 * 16, tenant="acme"))
    [outcome] = port.submit([Grow(bounded, 16 * 16)]).settle()
    assert isinstance(outcome.error, NeverFits)
    port.close()


def test_a_device_without_sessions_leaves_and_the_next_to_ask_gets_a_new_one(world: World) -> None:
    settings = world.settings(idle_exit_s=0.3)
    first = world.device(settings)
    assert has_ended(first.address.pid, TIMEOUT_S)
    second = world.device(settings)
    assert second.address.pid != first.address.pid
    assert second.address.attach != first.address.attach


def test_a_device_with_a_session_stays_and_leaves_after_the_last(world: World) -> None:
    [name] = (settings := world.settings(idle_exit_s=0.3)).device_names
    port = open_session(name, world.node_id, settings)
    pid = world.device(settings).address.pid
    assert not has_ended(pid, 1.5)
    port.close()
    assert has_ended(pid, TIMEOUT_S)


def test_a_client_that_comes_while_an_idle_device_leaves_is_served_by_it_or_by_the_next(world: World) -> None:
    [name] = (settings := world.settings(idle_exit_s=0.2)).device_names
    pids, pause = set(), threading.Event()
    for moment in range(5):
        pause.wait(0.1 * moment)  # before, while and after it leaves
        port = open_session(name, world.node_id, settings)
        commit(port)
        pids.add(world.device(settings).address.pid)
        port.close()
    assert len(pids) > 1


def commit(port: DevicePort) -> None:
    memory = port.memory(SequenceSpec(GEOMETRY, Layout.TOKEN_MAJOR, 16))
    [outcome] = port.submit([Grow(memory, 16)]).settle()
    assert outcome.error is None
    memory.close()


def test_a_device_without_sessions_keeps_no_memory(world: World) -> None:
    device = world.device(world.settings(device_memory=200 * GRANULE))
    client = world.client(device)
    ray.get([client.commit.remote(9), client.release.remote()], timeout=TIMEOUT_S)
    assert audit(device).handles["pooled"] > 0
    ray.get(client.close.remote(), timeout=TIMEOUT_S)
    eventually(lambda: not audit(device).sessions, "its session is gone")
    assert set(audit(device).handles.values()) == {0}


def test_a_frame_that_breaks_off_ends_the_device(world: World) -> None:
    device = world.device(world.settings(), failpoints=f"{Failpoint.DEVICE_RELEASED}=raise")
    client = world.client(device)
    ray.get(client.commit.remote(9), timeout=TIMEOUT_S)
    ray.get(client.release.remote(), timeout=TIMEOUT_S)  # to its client no error: it goes on with the next one
    assert has_ended(device.address.pid, TIMEOUT_S)


def test_an_error_that_is_no_refusal_ends_the_device(world: World) -> None:
    device = world.device(world.settings())
    with pytest.raises(RayActorError):
        ray.get(device.actor.frame.remote(None), timeout=TIMEOUT_S)
    assert has_ended(device.address.pid, TIMEOUT_S)


def test_an_audit_that_finds_a_hole_in_the_books_says_so_and_ends_the_device(world: World) -> None:
    device = world.device(world.settings())
    client = world.client(device)
    ray.get(client.commit.remote(9), timeout=TIMEOUT_S)
    ray.get(client.lose_a_page.remote(), timeout=TIMEOUT_S)
    with pytest.raises(InvariantBroken, match=r"held by the hardware: counted \d+ bytes and booked \d+"):
        audit(device)
    assert has_ended(device.address.pid, TIMEOUT_S)


def test_a_device_that_finds_itself_on_another_node_ends_for_good(world: World) -> None:
    [name] = (settings := world.settings()).device_names
    spec = replace(device_spec(name, world.node_id, settings), node_id="f" * 56)
    options = {"name": actor_name(name, world.node_id), "lifetime": "detached", "num_cpus": 0}
    actor = ray.remote(DeviceActor).options(**options).remote(spec)
    with pytest.raises(RayActorError):
        ray.get(actor.address.remote(), timeout=TIMEOUT_S)
    eventually(lambda: living_device(name, world.node_id) is None, "its name is free again")


def test_bytes_that_are_no_frame_are_refused_and_the_device_goes_on(world: World) -> None:
    device = world.device(world.settings())
    for garbage in (b"", b"\xc1", b"\x80", bytes(range(256)), b"\x81\xa1v\x02", b"\xdf\xff\xff\xff\xff", bytes(10**6)):
        with pytest.raises(BadFrame):
            ray.get(device.actor.frame.remote(garbage), timeout=TIMEOUT_S)
    figures = audit(device)
    assert (figures.free_bytes, figures.frames) == (CAPACITY, 0)
