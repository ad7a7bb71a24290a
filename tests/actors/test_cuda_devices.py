"""A GPU's device: one a GPU, by its UUID, on its node, as large as what is free; on a stand-in's two GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.exceptions import RayActorError

from actors.cluster import open_cluster
from actors.device import DeviceActor
from actors.device_spec import DeviceSpec
from actors.devices import actor_name, device_spec, living_device, measured_bytes
from kvcluster.config import ConfigError
from kvcluster.testing.stand_in_cuda import UUIDS, load
from kvcluster.units import MIB
from tests.actors.gpu_holder import GpuHolder
from tests.actors.gpu_world import GPU_BYTES, GpuWorld, two_gpus
from tests.actors.world import TIMEOUT_S, World, audit, eventually

NOWHERE = "GPU-00000000-0000-0000-0000-000000000000"


@pytest.fixture
def gpus(node_id: str, tmp_path: Path) -> Iterator[GpuWorld]:
    with two_gpus(node_id, tmp_path) as world:
        yield world


@contextmanager
def three_seen() -> Iterator[None]:
    """This process sees a third GPU, which Ray does not have."""
    stand_in = load()
    stand_in.set(DEVICES=3)
    try:
        yield
    finally:
        stand_in.set(DEVICES=2)


def started(spec: DeviceSpec, gpus: GpuWorld) -> Any:
    """A device actor of this specification, whatever is in it."""
    options = {"name": actor_name(spec.settings.name, gpus.node_id), "lifetime": "detached", "num_cpus": 0}
    return ray.remote(DeviceActor).options(runtime_env={"env_vars": gpus.env}, **options).remote(spec)


def test_a_device_that_finds_itself_on_another_node_than_its_gpu_ends_for_good(gpus: GpuWorld) -> None:
    spec = device_spec(UUIDS[0], gpus.node_id, gpus.settings())
    actor = started(replace(spec, node_id="f" * 56), gpus)
    with pytest.raises(RayActorError):
        ray.get(actor.address.remote(), timeout=TIMEOUT_S)
    eventually(lambda: living_device(UUIDS[0], gpus.node_id) is None, "its name is free again")


def test_a_device_whose_gpu_is_not_there_ends_for_good_and_says_which_are(gpus: GpuWorld) -> None:
    spec = device_spec(UUIDS[0], gpus.node_id, gpus.settings())
    actor = started(replace(spec, settings=replace(spec.settings, name=NOWHERE)), gpus)
    with pytest.raises(RayActorError, match=f"{NOWHERE} cannot be opened: the devices that .* cuda:0 .{UUIDS[0]}"):
        ray.get(actor.address.remote(), timeout=TIMEOUT_S)
    eventually(lambda: living_device(NOWHERE, gpus.node_id) is None, "its name is free again")


@pytest.mark.parametrize("hidden", [{"CUDA_VISIBLE_DEVICES": ""}, {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1"}])
def test_a_device_finds_its_gpu_though_gpus_are_hidden_from_actors_that_asked_ray_for_none(
    gpus: GpuWorld, hidden: dict[str, str]
) -> None:
    device = gpus.device(UUIDS[1], gpus.settings(), **hidden)
    assert (device.address.name, audit(device).device) == (UUIDS[1], UUIDS[1])


def test_a_device_has_its_share_of_what_is_free_and_less_once_others_have_taken_some(
    gpus: GpuWorld, world: World
) -> None:
    uuid = UUIDS[0]
    holder = world.started(GpuHolder, num_cpus=0, env=gpus.env)
    device = gpus.device(uuid, gpus.settings(gpu_memory_utilization=0.5))
    assert audit(device).capacity_bytes == GPU_BYTES // 2
    ray.get(holder.take.remote(uuid, 16 * MIB), timeout=TIMEOUT_S)
    assert measured_bytes(uuid, gpus.node_id) == (GPU_BYTES - 16 * MIB) // 2
    assert audit(device).capacity_bytes == (GPU_BYTES - 16 * MIB) // 2


def test_what_is_committed_stays_when_the_capacity_is_measured_lower(gpus: GpuWorld, world: World) -> None:
    uuid = UUIDS[0]
    holder = world.started(GpuHolder, num_cpus=0, env=gpus.env)
    device = gpus.device(uuid, gpus.settings(granule="1MiB"))
    client = world.client(device, env=gpus.env)
    ray.get(client.commit.remote(40 * 256), timeout=TIMEOUT_S)  # granules of 4 KiB, as it counts
    ray.get(holder.take.remote(uuid, 20 * MIB), timeout=TIMEOUT_S)
    assert measured_bytes(uuid, gpus.node_id) == 40 * MIB
    assert audit(device).committed_bytes == 40 * MIB
    ray.get(client.release.remote(), timeout=TIMEOUT_S)


def test_a_device_is_found_again_by_the_same_sizes_and_refused_with_others_while_it_is_in_use(
    gpus: GpuWorld, world: World
) -> None:
    settings = gpus.settings(device_memory="8MiB")
    device = gpus.device(UUIDS[0], settings)
    assert audit(device).capacity_bytes == 8 * MIB
    assert gpus.device(UUIDS[0], settings).address == device.address
    client = world.client(device, env=gpus.env)
    ray.get(client.session.remote(), timeout=TIMEOUT_S)
    for other in ({"device_memory": "4MiB"}, {"granule": "128KiB"}):
        with pytest.raises(ConfigError, match=r"is open on this cluster already, with 8\.0 MiB and a granule of 64"):
            gpus.device(UUIDS[0], settings.model_copy(update=other))
    ray.get(client.close.remote(), timeout=TIMEOUT_S)


def test_a_worker_that_ray_gives_another_gpu_than_those_that_are_named_is_refused_and_nothing_is_left(
    gpus: GpuWorld, world: World, folder: Path
) -> None:
    holder = world.started(GpuHolder, num_gpus=1, num_cpus=0, env=gpus.env)
    held = UUIDS.index(ray.get(holder.gpu.remote(), timeout=TIMEOUT_S))
    settings = gpus.settings(model=str(folder), devices=f"cuda:{held}")
    refusal = f"Ray gave a worker {UUIDS[1 - held]}, and devices names cuda:{held} {UUIDS[held]}: name cuda to take"
    with pytest.raises(ConfigError, match=refusal), open_cluster(settings, worker_env=gpus.env):
        pass
    assert gpus.living() == []


def test_more_gpus_than_ray_has_are_refused(gpus: GpuWorld, folder: Path) -> None:
    with three_seen():
        settings = gpus.settings(model=str(folder), devices="cuda:0,1,2")
        refusal = "devices is cuda:0,1,2, which takes 3 of Ray's GPUs, and it has 2 on this node: start Ray with more"
        with pytest.raises(ConfigError, match=refusal), open_cluster(settings, worker_env=gpus.env):
            pass
