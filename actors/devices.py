"""A device's actor, `device/<node id>/<name>`: what it is made of, and whether the one that is there is the same.

How it is found or made is in `actors.finding`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from actors.backends import VISIBLE
from actors.device import DeviceActor
from actors.device_spec import DeviceAddress, DeviceSpec, GpuUse
from actors.finding import START_TIMEOUT_S, find_owner
from actors.gpus import gpu_sizes
from actors.owners import (
    MadeOtherwise,
    OwnerKind,
    Sought,
    incarnation,
    living_owner,
    owner_name,
    reason_of,
)
from kvcluster.config import Backend, Settings
from kvcluster.errors import DeviceUnreachable
from kvcluster.failpoints import environment_of
from kvcluster.services.device_settings import MemorySettings, bulk_bytes_for, pool_bytes_for
from kvcluster.services.memory_check import check_device
from kvcluster.units import format_bytes


@dataclass(frozen=True, slots=True)
class Device:
    """A device that answered: its actor, where clients attach, and what it is made as again."""

    name: str
    node_id: str
    actor: Any
    address: DeviceAddress
    sought: Sought


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
        bulk_bytes=bulk_bytes_for(sizes.granule_bytes) if is_gpu else 0,
        grace_s=settings.successor_grace_s,
    )
    gpu = GpuUse(settings.gpu_memory_utilization, os.environ.get(VISIBLE)) if is_gpu else None
    return DeviceSpec(incarnation(name, memory, settings), node_id, settings.idle_exit_s, gpu)


def find_device(
    name: str, node_id: str, settings: Settings, *, patience_s: float = 0.0, env: dict[str, str] | None = None
) -> Device:
    """The device's actor on that node, made now where there is none. `patience_s`, `env`: as `find_owner` has them.

    Raises:
        ConfigError: it is there already, with another size, granule or quota, and in use; or its process cannot hold
            so much.
        DeviceUnreachable: it does not start or answer.
        DeviceMissing, DriverError: this process does not see the GPU, or cannot use it.
    """
    sought = sought_device(name, node_id, settings)
    found = find_owner(sought, patience_s=patience_s, env=env or environment_of(settings.failpoints))
    return Device(name, node_id, found.actor, found.address, sought)


def sought_device(name: str, node_id: str, settings: Settings) -> Sought:
    """What there is to be. Raises as `device_spec`."""
    spec = device_spec(name, node_id, settings)

    def check(address: DeviceAddress) -> None:
        _check_same(address, spec)
        if address.backend is Backend.HOST:
            check_device(settings, address.descriptors)

    return Sought(OwnerKind.DEVICE, name, node_id, DeviceActor, spec, check)


def actor_name(name: str, node_id: str) -> str:
    """The name of the device's actor in Ray."""
    return owner_name(OwnerKind.DEVICE, name, node_id)


def living_device(name: str, node_id: str) -> Any | None:
    """The actor of the device on that node, if there is one now."""
    return living_owner(OwnerKind.DEVICE, name, node_id)


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


def _check_same(address: DeviceAddress, spec: DeviceSpec) -> None:
    if address.asked != spec.sizes:
        there = address.asked
        sizes = f"{format_bytes(there.capacity_bytes)} and a granule of {format_bytes(there.granule_bytes)}"
        raise MadeOtherwise(
            f"device {address.name} is open on this cluster already, with {sizes}: name the same sizes, or another "
            f"device"
        )
    if address.quotas != spec.settings.memory.quotas:
        raise MadeOtherwise(
            f"device {address.name} is open on this cluster already, with the tenant_quotas "
            f"{dict(address.quotas.by_tenant)}: name the same, or another device"
        )
