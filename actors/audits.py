"""Every device of a running cluster, and all host pages, asked to count their books: `kvcluster audit`.

They are found by their names, which need no dashboard. One that ends between the two steps, as an idle device does,
is left out: it has taken its books along.
"""

from __future__ import annotations

from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.util import list_named_actors

from actors.cluster import joined_cluster
from actors.owners import NAMESPACE, OwnerKind, reason_of
from kvcluster.errors import InvariantBroken
from kvcluster.services.statistics import AuditedDevice

ANSWER_TIMEOUT_S = 10.0
FETCH_TIMEOUT_S = 1.0  # of an answer that is there
_PREFIXES = tuple(f"{kind}/" for kind in OwnerKind)


def audit_cluster(address: str | None = None) -> tuple[AuditedDevice, ...]:
    """Each device, and each node's host pages, of the cluster at `address`, or RAY_ADDRESS, or the one on this machine.

    Raises:
        ConfigError: no cluster answers there.
    """
    with joined_cluster(address):
        return audit_devices()


def audit_devices(*, timeout_s: float = ANSWER_TIMEOUT_S) -> tuple[AuditedDevice, ...]:
    """The same of the cluster that this process is connected to, by kind, node and name. All are asked at once."""
    asked = {name: actor.audit.remote() for name in device_actors() if (actor := _actor(name)) is not None}
    if asked:
        ray.wait(list(asked.values()), num_returns=len(asked), timeout=timeout_s)
    return tuple(found for name, reference in asked.items() if (found := _heard(name, reference)) is not None)


def device_actors() -> list[str]:
    """Names of the actors, sorted: "device/<node>/<device>" and "host-kv/<node>/<pages>"."""
    named = list_named_actors(all_namespaces=True)
    names = (actor["name"] for actor in named if actor["namespace"] == NAMESPACE)
    return sorted(name for name in names if name.startswith(_PREFIXES))


def _actor(name: str) -> Any | None:
    try:
        return ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:  # it has ended
        return None


def _heard(name: str, reference: Any) -> AuditedDevice | None:
    _, node_id, device = name.split("/", 2)
    try:
        return AuditedDevice(device, node_id, ray.get(reference, timeout=FETCH_TIMEOUT_S))
    except RayTaskError as error:
        if isinstance(error.cause, InvariantBroken):
            return AuditedDevice(device, node_id, None, error.cause.sentence)
        raise
    except GetTimeoutError:
        return AuditedDevice(device, node_id, None, "it does not answer")
    except RayActorError:
        return None
    except RayError as error:
        return AuditedDevice(device, node_id, None, reason_of(error))
