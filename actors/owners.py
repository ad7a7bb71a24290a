"""Finding the actor of an owner of memory, or making it: eight creators at once get one actor.

Owners are named, detached actors `<kind>/<node id>/<name>`, bound to their node, so that whoever comes first makes
them and nobody's end takes them along. One that is idle leaves by itself; a name that is found dead is asked for again
a bounded number of times. Devices (`actors.devices`) and host pages (`actors.hosts`) are the two kinds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeVar

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from kvcluster.budget.governor import Limits
from kvcluster.budget.quotas import Quotas
from kvcluster.config import Settings
from kvcluster.errors import DeviceUnreachable
from kvcluster.services.device_settings import DeviceSettings, MemorySettings

F = TypeVar("F")
P = TypeVar("P")

NAMESPACE = "kvcluster"
START_TIMEOUT_S = 60.0
ATTEMPTS = 5
PAUSE_S = 0.1  # more before each further attempt: a name is free a moment after its actor's death
LEAVING_S = 30.0  # for so long owners that leave, idle, before they are greeted are taken for what they are
GREET_AGAIN_S = 0.005


class OwnerKind(StrEnum):
    """What an owner's name begins with."""

    DEVICE = "device"
    HOST_PAGES = "host-kv"


@dataclass(frozen=True, slots=True)
class Sought:
    """An owner that is to be there. Where it is not, its actor is made: `actor_class` of `spec`.

    `check` looks at the address that it answers with, and raises ConfigError where another one is there.
    """

    kind: OwnerKind
    name: str
    node_id: str
    actor_class: type
    spec: Any
    check: Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class Found:
    """An owner that answered: its actor, and its address."""

    actor: Any
    address: Any


def incarnation(name: str, memory: MemorySettings, settings: Settings) -> DeviceSettings:
    """What an owner that is made now is set to: this memory, bounded as `settings` say. Each process of it begins an
    epoch of its own: see `actors.incarnations`.
    """
    limits = Limits(settings.grant_s, settings.retry_after_min_s, settings.retry_after_max_s)
    bounded = replace(memory, limits=limits, quotas=Quotas(settings.tenant_quota_bytes))
    return DeviceSettings(name, bounded, lease_s=settings.lease_s, heartbeat_s=settings.heartbeat_s)


def find_owner(sought: Sought, *, env: dict[str, str] | None = None) -> Found:
    """The owner's actor, made now where there is none. `env` is for fault tests.

    Raises:
        ConfigError: what `check` found. The owner stays as it is.
        DeviceUnreachable: it does not start or answer.
    """
    reason = ""
    for attempt in range(ATTEMPTS):
        time.sleep(attempt * PAUSE_S)
        actor = make_owner(sought, env=env)
        try:
            address = ray.get(actor.address.remote(), timeout=START_TIMEOUT_S)
        except GetTimeoutError:
            raise DeviceUnreachable(device=sought.name, reason=f"no answer within {START_TIMEOUT_S:.0f} s") from None
        except RayActorError as error:  # it was leaving when we found it
            reason = reason_of(error)
        except RayError as error:
            raise DeviceUnreachable(device=sought.name, reason=reason_of(error)) from None
        else:
            sought.check(address)
            return Found(actor, address)
    raise DeviceUnreachable(device=sought.name, reason=reason)


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


def session_with(find: Callable[[], F], open_one: Callable[[F], P]) -> P:
    """What `open_one` opens with the owner of memory that `find` finds; again where that left, idle, in between.

    Again for `LEAVING_S` at most, in which an owner of a short `idle_exit_s` may leave many times.

    Raises:
        Whatever the two raise.
    """
    deadline = time.monotonic() + LEAVING_S
    while time.monotonic() < deadline:
        found = find()
        try:
            return open_one(found)
        except DeviceUnreachable:
            time.sleep(GREET_AGAIN_S)
    return open_one(find())
