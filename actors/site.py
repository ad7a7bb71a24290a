"""Where a job's workers sit: at devices of one node, which is this one.

Host devices have names of the job's choosing. A GPU is Ray's to give, so that a seat at one has no device before its
worker has started; what can be said before is how many there are to be, and which may be among them.
"""

from __future__ import annotations

from dataclasses import dataclass

import ray

from actors.gpus import gpu_share
from kvcluster.config import Backend, ConfigError, Settings
from kvcluster.driver.cuda import CudaDevice


@dataclass(frozen=True, slots=True)
class Site:
    """`devices` has one entry a device, empty for one that Ray gives. `gpus` are those that the settings name."""

    node_id: str
    devices: tuple[str, ...]
    workers_per_device: int
    gpu_share: float = 0.0
    gpus: tuple[CudaDevice, ...] = ()
    is_listed: bool = False  # a GPU that is not among `gpus` will not do

    @property
    def seats(self) -> tuple[str, ...]:
        """The device of each worker."""
        return self.devices * self.workers_per_device

    @property
    def resources(self) -> tuple[str, ...]:
        """What each worker has of Ray's, for itself or in part."""
        return ("CPU", "GPU") if self.gpu_share else ("CPU",)

    def named(self, device: str) -> str:
        """The device for people: a GPU's number and UUID."""
        return next((f"cuda:{gpu.ordinal} {gpu.uuid}" for gpu in self.gpus if gpu.uuid == device), device)

    def check(self, device: str) -> None:
        """Nothing, where a worker may sit at this device.

        Raises:
            ConfigError: Ray gave a GPU that is not named.
        """
        if self.is_listed and device not in {gpu.uuid for gpu in self.gpus}:
            named = ", ".join(self.named(gpu.uuid) for gpu in self.gpus)
            raise ConfigError(
                f"Ray gave a worker {device}, and devices names {named}: name cuda to take what Ray gives, or start "
                f"Ray with these alone (CUDA_VISIBLE_DEVICES)"
            )


def open_site(settings: Settings, node_id: str, gpus: tuple[CudaDevice, ...]) -> Site:
    """The site of a job on a cluster that is there; `gpus` are those that the settings name.

    Raises:
        ConfigError: Ray has too few CPUs or GPUs on this node, and workers would be waited for in vain.
    """
    [node] = [node for node in ray.nodes() if node["NodeID"] == node_id]
    cpus, ray_gpus = (int(node["Resources"].get(kind, 0)) for kind in ("CPU", "GPU"))
    if settings.backend is Backend.HOST:
        site = Site(node_id, settings.device_names, settings.workers_per_device)
    else:
        numbers = settings.device_numbers
        count = ray_gpus if numbers is None else len(numbers)
        _check_gpus(settings, count, ray_gpus)
        site = Site(node_id, ("",) * count, settings.workers_per_device, gpu_share(settings), gpus, numbers is not None)
    _check_cpus(len(site.seats), cpus)
    return site


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
