"""Finding a device's actor, or making it: eight creators at once get one actor.

Devices are named, detached actors `device/<node id>/<name>`, bound to their node, so that whoever comes first makes
them and nobody's end takes them along. A device that is idle leaves by itself; a name that is found dead is asked
for again a bounded number of times.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.backends import VISIBLE
from actors.device import DeviceActor
from actors.device_spec import DeviceAddress, DeviceSpec, GpuUse
from actors.gpus import gpu_sizes
from kvcluster.budget.governor import Limits
from kvcluster.budget.quotas import Quotas
from kvcluster.config import Backend, ConfigError, Settings
from kvcluster.errors import DeviceUnreachable
from kvcluster.services.device_settings import DeviceSettings, MemorySettings, bulk_bytes_for, pool_bytes_for
from kvcluster.services.memory_check import check_device
from kvcluster.units import format_bytes

NAMESPACE = "kvcluster"
START_TIMEOUT_S = 60.0
ATTEMPTS = 5
PAUSE_S = 0.1  # more before each further attempt: a name is free a moment after its actor's death


@dataclass(frozen=True, slots=True)
class Device:
    """A device that answered: its actor, and where clients attach."""

    name: str
    node_id: str
    actor: Any
    address: DeviceAddress


def device_spec(name: str, node_id: str, settings: Settings) -> DeviceSpec:
    """What the device `name` on that node is made of: a host device, or a GPU's by its UUID.

    Raises:
        ConfigError, DeviceMissing, DriverError: as `gpu_sizes`.
    """
    is_gpu = settings.backend is Backend.CUDA
    sizes = gpu_sizes(name, settings) if is_gpu else settings.host_sizes
    memory = MemorySettings(
        capacity_bytes=sizes.capacity_bytes,
        granule_bytes=sizes.granule_bytes,
        pool_bytes=pool_bytes_for(sizes.capacity_bytes),
        limits=Limits(settings.grant_s, settings.retry_after_min_s, settings.retry_after_max_s),
        quotas=Quotas(settings.tenant_quota_bytes),
        bulk_bytes=bulk_bytes_for(sizes.granule_bytes) if is_gpu else 0,
    )
    epoch = time.time_ns() // 1_000  # another one for each incarnation
    service = DeviceSettings(name, memory, epoch, settings.lease_s, settings.heartbeat_s)
    gpu = GpuUse(settings.gpu_memory_utilization, os.environ.get(VISIBLE)) if is_gpu else None
    return DeviceSpec(service, node_id, settings.idle_exit_s, gpu)


def find_device(name: str, node_id: str, settings: Settings, *, env: dict[str, str] | None = None) -> Device:
    """The device's actor on that node, made now where there is none. `env` is for fault tests.

    Raises:
        ConfigError: it is there already, with another size, granule or quota, or its process cannot hold so much.
        DeviceUnreachable: it does not start or answer.
        DeviceMissing, DriverError: this process does not see the GPU, or cannot use it.
    """
    spec = device_spec(name, node_id, settings)
    reason = ""
    for attempt in range(ATTEMPTS):
        time.sleep(attempt * PAUSE_S)
        actor = _create(spec, env or {})
        try:
            address: DeviceAddress = ray.get(actor.address.remote(), timeout=START_TIMEOUT_S)
        except GetTimeoutError:
            raise DeviceUnreachable(device=name, reason=f"no answer within {START_TIMEOUT_S:.0f} s") from None
        except RayActorError as error:  # it was leaving when we found it
            reason = reason_of(error)
        except RayError as error:
            raise DeviceUnreachable(device=name, reason=reason_of(error)) from None
        else:
            _check_same(address, spec)
            if address.backend is Backend.HOST:
                check_device(settings, address.descriptors)
            return Device(name, node_id, actor, address)
    raise DeviceUnreachable(device=name, reason=reason)


def actor_name(name: str, node_id: str) -> str:
    return f"device/{node_id}/{name}"


def living_device(name: str, node_id: str) -> Any | None:
    """The actor of the device on that node, if there is one now."""
    try:
        return ray.get_actor(actor_name(name, node_id), namespace=NAMESPACE)
    except ValueError:
        return None


def measured_bytes(name: str, node_id: str) -> int:
    """The capacity of a GPU's device, which it measures now that a model is there.

    Raises:
        DeviceUnreachable: it is gone, or does not answer.
    """
    actor = living_device(name, node_id)
    try:
        if actor is None:
            raise DeviceUnreachable(device=name, reason="it is gone")
        capacity_bytes: int = ray.get(actor.measure.remote(), timeout=START_TIMEOUT_S)
    except RayTaskError:
        raise
    except RayError as error:
        raise DeviceUnreachable(device=name, reason=reason_of(error)) from None
    return capacity_bytes


def reason_of(error: Exception) -> str:
    """What went wrong in one line, without Ray's report around it."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    if not lines:
        return type(cause).__name__
    return lines[-1] if "creation task" in lines[0] else lines[0]  # there the traceback follows, and ends in the error


def _create(spec: DeviceSpec, env: dict[str, str]) -> Any:
    options = {
        "name": actor_name(spec.settings.name, spec.node_id),
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
        "num_cpus": 0,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(spec.node_id, soft=False),
        "runtime_env": {"env_vars": env} if env else {},
    }
    return ray.remote(DeviceActor).options(**options).remote(spec)


def _check_same(address: DeviceAddress, spec: DeviceSpec) -> None:
    if address.asked != spec.sizes:
        there = address.asked
        sizes = f"{format_bytes(there.capacity_bytes)} and a granule of {format_bytes(there.granule_bytes)}"
        raise ConfigError(
            f"device {address.name} is open on this cluster already, with {sizes}: name the same sizes, or another "
            f"device"
        )
    if address.quotas != spec.settings.memory.quotas:
        raise ConfigError(
            f"device {address.name} is open on this cluster already, with the tenant_quotas "
            f"{dict(address.quotas.by_tenant)}: name the same, or another device"
        )
