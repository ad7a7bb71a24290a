"""Every device of a running cluster, and all host pages, asked to count their books: `kvcluster audit`."""

from __future__ import annotations

from actors.asking import ANSWER_TIMEOUT_S, OWNERS, Silent, actors_named, answers
from actors.cluster import joined_cluster
from kvcluster.services.statistics import AuditedDevice


def audit_cluster(address: str | None = None) -> tuple[AuditedDevice, ...]:
    """Each device, and each node's host pages, of the cluster at `address`, or RAY_ADDRESS, or the one on this machine.

    Raises:
        ConfigError: no cluster answers there.
    """
    with joined_cluster(address):
        return audit_devices()


def audit_devices(*, timeout_s: float = ANSWER_TIMEOUT_S) -> tuple[AuditedDevice, ...]:
    """The same of the cluster that this process is connected to, by kind, node and name. All are asked at once."""
    said = answers(actors_named(OWNERS), lambda actor: actor.audit.remote(), timeout_s=timeout_s)
    return tuple(_audited(name, answer) for name, answer in said.items())


def device_actors() -> list[str]:
    """Names of the actors, sorted: "device/<node>/<device>" and "host-kv/<node>/<pages>"."""
    return list(actors_named(OWNERS))


def _audited(name: str, said: object) -> AuditedDevice:
    _, node_id, device = name.split("/", 2)
    if isinstance(said, Silent):
        return AuditedDevice(device, node_id, None, str(said))
    return AuditedDevice(device, node_id, said)  # type: ignore[arg-type]
