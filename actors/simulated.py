"""Ray on several simulated nodes of this machine, for fault tests: started, looked at, hurt, and ended with all of it.

For `kvcluster.testing.deployment`, which speaks of devices and workers and knows no Ray. The nodes share this machine's
processors and memory; what makes them nodes is a raylet each, which can be killed. Its death is noticed after about a
second where nothing else keeps the machine busy: three checks of 0.3 s that fail. A check that is only late counts
after 2 s, since a raylet without a processor for a while is not dead.

Everything of Ray's lies in a folder of its own, so that a cluster that others started on the machine is not disturbed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray.cluster_utils import Cluster
from ray.exceptions import GetTimeoutError, RayActorError, RayError

from actors.audits import audit_devices, device_actors
from actors.leaving import leave_all
from actors.owners import NAMESPACE, OwnerKind
from kvcluster.failpoints import Passer
from kvcluster.services.statistics import AuditedDevice

ANSWER_TIMEOUT_S = 20.0
LEAVE_S = 2.0  # an owner, once the processes of its clients have been killed
OBJECT_STORE_BYTES = 100 * 2**20
_KINDS = {OwnerKind.DEVICE: Passer.DEVICE, OwnerKind.HOST_PAGES: Passer.PAGES}
_SYSTEM = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 300,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 3,
    "timeout_ms_task_wait_for_death_info": 50,
    "prestart_worker_first_driver": False,  # nobody needs as many idle processes as there are CPUs
}


@dataclass(frozen=True, slots=True)
class Owner:
    """The actor of a device or of host pages, and the process that it is in."""

    kind: Passer
    name: str
    actor: Any
    pid: int


class SimulatedNodes:
    """A cluster that this process is connected to; node 0 is the one that it is on. See `simulated_nodes`."""

    def __init__(self, cluster: Cluster, others: Sequence[Any]) -> None:
        self._cluster = cluster
        self._others = list(others)

    def __len__(self) -> int:
        """How many there were at the start."""
        return 1 + len(self._others)

    @property
    def address(self) -> str:
        """What RAY_ADDRESS or --ray-address is to be for other processes."""
        address: str = self._cluster.address
        return address

    def node_id(self, number: int) -> str:
        """Ray's id of a node."""
        found: str = (self._cluster.head_node if number == 0 else self._others[number - 1]).node_id
        return found

    def remove(self, number: int) -> None:
        """Kill a node with all its processes, as if its machine had lost power.

        Raises:
            ValueError: it is the one that this process is on, or there is no such node. Nothing changed.
        """
        if not 0 < number < len(self):
            raise ValueError(f"node {number} cannot be removed: name one from 1 to {len(self) - 1}")
        self._cluster.remove_node(self._others[number - 1], allow_graceful=False)


@contextmanager
def simulated_nodes(count: int, *, cpus: int) -> Iterator[SimulatedNodes]:
    """So many nodes with so many CPUs each, and this process connected to them; all is ended afterwards.

    Raises:
        RuntimeError: Ray runs in this process already, and a process has one Ray. Nothing was started.
    """
    if ray.is_initialized():
        raise RuntimeError("Ray runs in this process already: end it (ray.shutdown), or test in another process")
    with ExitStack() as opened:
        _own_folder(opened)
        sizes = {"num_cpus": cpus, "object_store_memory": OBJECT_STORE_BYTES}
        cluster = Cluster(
            initialize_head=True,
            shutdown_at_exit=False,
            head_node_args={**sizes, "include_dashboard": False, "_system_config": _SYSTEM},
        )
        opened.callback(cluster.shutdown)
        others = [cluster.add_node(**sizes) for _ in range(count - 1)]
        opened.callback(ray.shutdown)
        ray.init(address=cluster.address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
        yield SimulatedNodes(cluster, others)


def owners() -> tuple[Owner, ...]:
    """Every device and all host pages, of the nodes that live, that answer."""
    found, alive = [], _living_nodes()
    for name in device_actors():
        if name.split("/")[1] not in alive:
            continue
        try:
            actor = ray.get_actor(name, namespace=NAMESPACE)
            address = ray.get(actor.address.remote(), timeout=ANSWER_TIMEOUT_S)
        except (ValueError, RayActorError, GetTimeoutError):  # it has ended, or is stopped
            continue
        found.append(Owner(_KINDS[OwnerKind(name.partition("/")[0])], address.name, actor, address.pid))
    return tuple(found)


def audits() -> tuple[AuditedDevice, ...]:
    """What each of them says of its books; those of a node that died have none."""
    alive = _living_nodes()
    return tuple(each for each in audit_devices(timeout_s=ANSWER_TIMEOUT_S) if each.node_id in alive)


def arm_actors(actors: Sequence[Any], text: str) -> None:
    """Arm the processes of these actors (`kvcluster.failpoints.arm_with`); one that has ended is armed by nobody.

    Raises:
        GetTimeoutError: one does not answer. Others may be armed.
    """
    for reference in [actor.arm.remote(text) for actor in actors]:
        try:
            ray.get(reference, timeout=ANSWER_TIMEOUT_S)
        except RayActorError:
            continue


def end_owners() -> None:
    """Every owner gives back what nobody has, and ends; for good, though it would be started again.

    Those go first that nobody uses any more, with their files; of the others the file stays while their clients live.
    """
    with suppress(RayError):
        leave_all(LEAVE_S)
    for owner in owners():
        with suppress(RayError):
            ray.get(owner.actor.close.remote(), timeout=ANSWER_TIMEOUT_S)
    for name in device_actors():  # of dead nodes too: nothing waits for these to come back
        with suppress(ValueError):
            ray.kill(ray.get_actor(name, namespace=NAMESPACE))


def _living_nodes() -> set[str]:
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


def _own_folder(opened: ExitStack) -> None:
    before = os.environ.get("RAY_TMPDIR")
    folder = tempfile.mkdtemp(prefix="kv-ray-", dir="/tmp")  # a short name: sockets lie in it
    opened.callback(shutil.rmtree, folder, ignore_errors=True)
    opened.callback(_restore, "RAY_TMPDIR", before)
    os.environ["RAY_TMPDIR"] = folder


def _restore(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
