"""The actor of an owner of memory, by its name, or made: eight creators at once get one actor.

Owners are named, detached actors `<kind>/<node id>/<name>`, bound to their node, so that whoever comes first makes
them and nobody's end takes them along. One that is idle leaves by itself. Devices (`actors.devices`) and host pages
(`actors.hosts`) are the two kinds. Nobody is waited for here: whether one answers is `actors.finding`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import ray
from ray.exceptions import RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from kvcluster.budget.governor import Limits
from kvcluster.budget.quotas import Quotas
from kvcluster.config import ConfigError, Settings
from kvcluster.services.device_settings import DeviceSettings, MemorySettings

NAMESPACE = "kvcluster"


class OwnerKind(StrEnum):
    """What an owner's name begins with."""

    DEVICE = "device"
    HOST_PAGES = "host-kv"


class MadeOtherwise(ConfigError):
    """The owner that is there has other sizes or quotas. Where nobody uses it, it may leave, and be made anew."""


@dataclass(frozen=True, slots=True)
class Sought:
    """An owner that is to be there. Where it is not, its actor is made: `actor_class` of `spec`.

    `check` looks at the address that it answers with, and raises MadeOtherwise where another one is there, ConfigError
    where another one would not help.
    """

    kind: OwnerKind
    name: str
    node_id: str
    actor_class: type
    spec: Any
    check: Callable[[Any], None]


def incarnation(name: str, memory: MemorySettings, settings: Settings) -> DeviceSettings:
    """What an owner that is made now is set to: this memory, bounded as `settings` say. Each process of it begins an
    epoch of its own: see `actors.incarnations`.
    """
    limits = Limits(settings.grant_s, settings.retry_after_min_s, settings.retry_after_max_s)
    bounded = replace(memory, limits=limits, quotas=Quotas(settings.tenant_quota_bytes))
    return DeviceSettings(name, bounded, lease_s=settings.lease_s, heartbeat_s=settings.heartbeat_s)


def owner_name(kind: OwnerKind, name: str, node_id: str) -> str:
    """The actor's name in Ray."""
    return f"{kind}/{node_id}/{name}"


def living_owner(kind: OwnerKind, name: str, node_id: str) -> Any | None:
    """The actor of the owner on that node, if there is one now."""
    try:
        return ray.get_actor(owner_name(kind, name, node_id), namespace=NAMESPACE)
    except ValueError:
        return None


def reason_of(error: Exception) -> str:
    """What went wrong in one line, without Ray's report around it."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    if not lines:
        return type(cause).__name__
    return lines[-1] if "creation task" in lines[0] else lines[0]  # there the traceback follows, and ends in the error


def make_owner(sought: Sought, *, env: dict[str, str] | None = None) -> Any:
    """The owner's actor, made now where there is none. Waits for nothing; Ray starts it again whenever it dies."""
    options = {
        "name": owner_name(sought.kind, sought.name, sought.node_id),
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
        "num_cpus": 0,
        "max_restarts": -1,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(sought.node_id, soft=False),
        "runtime_env": {"env_vars": env} if env else {},
    }
    return ray.remote(sought.actor_class).options(**options).remote(sought.spec)
