"""Where a job's workers sit: at devices of this node, or of several nodes of the cluster.

Host devices have names of the job's choosing, the same on each node. A GPU is Ray's to give, so that a seat at one
has no device before its worker has started; what can be said before is how many there are to be, and which may be
among them. This node comes first; of the others those come that have room for all of the job's workers on a node, in
the order of their ids. A node that dies stays in the site: nobody sits there again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray

from actors.gpus import gpu_share
from kvcluster.config import Backend, ConfigError, Settings
from kvcluster.driver.cuda import CudaDevice

SHOWN_CHARACTERS = 8  # of a node's id


@dataclass(frozen=True, slots=True)
class Place:
    """A device, or one that Ray is to give (""), of a node."""

    node_id: str
    device: str


@dataclass(frozen=True, slots=True)
class Site:
    """`devices` has one entry a device of each node, empty for one that Ray gives. `nodes` begins with this one.

    `gpus` are those that the settings name, and they are this node's.
    """

    nodes: tuple[str, ...]
    devices: tuple[str, ...]
    workers_per_device: int
    gpu_share: float = 0.0
    gpus: tuple[CudaDevice, ...] = ()
    is_listed: bool = False  # a GPU that is not among `gpus` will not do

    @property
    def seats(self) -> tuple[Place, ...]:
        """The place of each worker."""
        return tuple(Place(node, device) for node in self.nodes for device in self.devices) * self.workers_per_device

    @property
    def workers_per_node(self) -> int:
        return len(self.devices) * self.workers_per_device

    @property
    def resources(self) -> tuple[str, ...]:
        """What each worker has of Ray's, for itself or in part."""
        return ("CPU", "GPU") if self.gpu_share else ("CPU",)

    def named(self, place: Place) -> str:
        """The device for people: a GPU's number and UUID, and its node where there are several."""
        name = next((f"cuda:{gpu.ordinal} {gpu.uuid}" for gpu in self.gpus if gpu.uuid == place.device), place.device)
        return f"{name} on {shown_node(place.node_id)}" if len(self.nodes) > 1 else name

    def check(self, device: str) -> None:
        """Nothing, where a worker may sit at this device.

        Raises:
            ConfigError: Ray gave a GPU that is not named.
        """
        if self.is_listed and device not in {gpu.uuid for gpu in self.gpus}:
            named = ", ".join(self.named(Place(self.nodes[0], gpu.uuid)) for gpu in self.gpus)
            raise ConfigError(
                f"Ray gave a worker {device}, and devices names {named}: name cuda to take what Ray gives, or start "
                f"Ray with these alone (CUDA_VISIBLE_DEVICES)"
            )


def shown_node(node_id: str) -> str:
    """A node for people."""
    return f"node {node_id[:SHOWN_CHARACTERS]}"


def is_alive(node_id: str) -> bool:
    """Whether Ray takes that node for alive: it may still do so for seconds after its end."""
    return any(node["NodeID"] == node_id and node["Alive"] for node in ray.nodes())


def open_site(settings: Settings, node_id: str, gpus: tuple[CudaDevice, ...]) -> Site:
    """The site of a job on a cluster that is there; `gpus` are those that the settings name, of this node.

    Raises:
        ConfigError: Ray has too few CPUs, GPUs or nodes, and workers would be waited for in vain.
    """
    alive = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
    site = _site_here(settings, node_id, gpus, int(alive[node_id].get("GPU", 0)))
    if settings.nodes == 1:
        _check_cpus(site.workers_per_node, int(alive[node_id].get("CPU", 0)))
        return site
    return _site_of_many(settings, site, alive)


def _site_here(settings: Settings, node_id: str, gpus: tuple[CudaDevice, ...], ray_gpus: int) -> Site:
    if settings.backend is Backend.HOST:
        return Site((node_id,), settings.device_names, settings.workers_per_device)
    numbers = settings.device_numbers
    if settings.nodes != 1 and numbers is not None:
        raise ConfigError(
            f"devices is {settings.devices}, whose numbers are this node's, and nodes is {settings.nodes}: name cuda"
        )
    count = ray_gpus if numbers is None else len(numbers)
    _check_gpus(settings, count, ray_gpus)
    share = gpu_share(settings)
    return Site((node_id,), ("",) * count, settings.workers_per_device, share, gpus, numbers is not None)


def _site_of_many(settings: Settings, here: Site, alive: Mapping[str, Mapping[str, Any]]) -> Site:
    """The same devices on as many nodes as the settings say, of those that have room for them."""
    needed = {"CPU": here.workers_per_node, "GPU": len(here.devices) if here.gpu_share else 0}
    roomy = [node for node in sorted(alive) if all(alive[node].get(kind, 0) >= more for kind, more in needed.items())]
    roomy.sort(key=lambda node: node not in here.nodes)
    count = len(roomy) if settings.nodes == "all" else int(settings.nodes)
    if not 0 < count <= len(roomy):
        wanted = ", ".join(f"{more} {kind}s" for kind, more in needed.items() if more)
        raise ConfigError(
            f"nodes is {settings.nodes}, and {len(roomy)} of the cluster's {len(alive)} nodes have the {wanted} that "
            f"the workers of each take: name fewer, join a larger cluster (--ray-address), or start its nodes with more"
        )
    return Site(tuple(roomy[:count]), here.devices, here.workers_per_device, here.gpu_share, here.gpus)


def _check_gpus(settings: Settings, count: int, ray_gpus: int) -> None:
    if not count or ray_gpus < count:
        raise ConfigError(
            f"devices is {settings.devices}, which takes {count or 'at least 1'} of Ray's GPUs, and it has {ray_gpus} "
            f"on this node: start Ray with more (ray start --num-gpus), or use host devices"
        )


def _check_cpus(workers: int, cpus: int) -> None:
    if cpus < workers:
        raise ConfigError(
            f"{workers} workers take a CPU each, and Ray has {cpus} on this node: name fewer devices or "
            f"workers_per_device, or start Ray with more (ray start --num-cpus)"
        )
