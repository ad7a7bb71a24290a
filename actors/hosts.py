"""A node's host pages, the actor `host-kv/<node id>/<name>`: what it is made of, and whether the one there is the same.

The shape of a block is the model's, and part of the name: models of one shape share pages, and one of another shape
gets an actor of its own. How an actor is found or made is in `actors.finding`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from actors.finding import find_owner
from actors.host import HostKvActor
from actors.host_spec import HostAddress, HostSpec, pages_name
from actors.owners import MadeOtherwise, OwnerKind, Sought, incarnation, living_owner
from kvcluster.config import ConfigError, Settings
from kvcluster.driver.limits import memory_room
from kvcluster.failpoints import environment_of
from kvcluster.geometry.model import KvGeometry
from kvcluster.paged.shape import PageShape
from kvcluster.services.device_settings import MemorySettings
from kvcluster.units import format_bytes


@dataclass(frozen=True, slots=True)
class Host:
    """Host pages that answered: their actor, where clients attach, and what they are made as again."""

    actor: Any
    address: HostAddress
    sought: Sought

    @property
    def spec(self) -> HostSpec:
        """What they are made of."""
        spec: HostSpec = self.sought.spec
        return spec


def host_spec(geometry: KvGeometry, node_id: str, settings: Settings) -> HostSpec:
    """What the pages of that node for a model of this geometry are made of, as whole blocks.

    Raises:
        ConfigError: the model cannot be kept in pages, or not one block lies in so much memory.
    """
    asked_bytes = settings.host_memory_bytes or 0
    try:
        shape = PageShape.of(geometry, block_size=settings.block_size)
    except ValueError as wrong:
        raise ConfigError(f"{_asked(asked_bytes)}, and {wrong}") from None
    if asked_bytes < shape.pitch_bytes:
        block = f"a block of {shape.block_size} tokens of this model takes {format_bytes(shape.pitch_bytes)}"
        raise ConfigError(f"{_asked(asked_bytes)}, and {block}: give at least that much")
    capacity_bytes = asked_bytes // shape.pitch_bytes * shape.pitch_bytes
    memory = MemorySettings(capacity_bytes, shape.pitch_bytes, pool_bytes=0)
    service = incarnation(pages_name(shape, settings.dtype), memory, settings)
    return HostSpec(service, node_id, settings.idle_exit_s, shape, settings.dtype)


def find_host(
    geometry: KvGeometry,
    node_id: str,
    settings: Settings,
    *,
    patience_s: float = 0.0,
    env: dict[str, str] | None = None,
) -> Host:
    """The node's pages for a model of this geometry, made now where there are none. `patience_s`, `env`: as
    `find_owner` has them.

    Raises:
        ConfigError: as `host_spec`; or they are there already, with another size or quota, and in use; or the machine
            has not so much memory.
        DeviceUnreachable: the actor does not start or answer.
    """
    sought = sought_host(geometry, node_id, settings)
    _check_room(sought.spec)
    found = find_owner(sought, patience_s=patience_s, env=env or environment_of(settings.failpoints))
    return Host(found.actor, found.address, sought)


def sought_host(geometry: KvGeometry, node_id: str, settings: Settings) -> Sought:
    """What there is to be. Raises as `host_spec`."""
    spec = host_spec(geometry, node_id, settings)
    name = spec.settings.name
    return Sought(OwnerKind.HOST_PAGES, name, node_id, HostKvActor, spec, lambda there: _check_same(there, spec))


def _check_room(spec: HostSpec) -> None:
    """The room is measured first: where others made the pages meanwhile, these have their memory already."""
    asked_bytes, room_bytes = spec.settings.memory.capacity_bytes, memory_room()
    is_there = living_owner(OwnerKind.HOST_PAGES, spec.settings.name, spec.node_id) is not None
    if asked_bytes > room_bytes and not is_there:
        raise _too_much(asked_bytes, room_bytes)


def _too_much(asked_bytes: int, room_bytes: int) -> ConfigError:
    return ConfigError(f"{_asked(asked_bytes)}, and this machine has {format_bytes(room_bytes)} left: give less")


def _check_same(there: HostAddress, spec: HostSpec) -> None:
    asked = spec.settings.memory
    if asked.capacity_bytes > there.capacity_bytes + memory_room():
        raise _too_much(asked.capacity_bytes, there.capacity_bytes + memory_room())
    if there.capacity_bytes != asked.capacity_bytes:
        raise MadeOtherwise(
            f"{_asked(asked.capacity_bytes)}, and {there.name} is open on this cluster already, with "
            f"{format_bytes(there.capacity_bytes)}: give host_memory {there.capacity_bytes} as it has, or another "
            f"block_size, or wait until the last job that uses it has ended"
        )
    if there.quotas != asked.quotas:
        raise MadeOtherwise(
            f"{there.name} is open on this cluster already, with the tenant_quotas {dict(there.quotas.by_tenant)}: "
            f"name the same"
        )


def _asked(size_bytes: int) -> str:
    return f"host_memory is {format_bytes(size_bytes)}"
