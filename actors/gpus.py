"""GPUs as this process sees them: which a job means, which one Ray gave, and how its memory is cut.

Ray counts GPUs and numbers them for itself, and a process sees those that CUDA_VISIBLE_DEVICES leaves it, under
numbers of its own. So a GPU goes by its UUID, and its number is only for people. Looking makes no context.

Which GPU a worker gets is Ray's choice. A cluster of our own is started with the listed GPUs alone; on a running one
a worker that got another GPU is refused, because nothing can be asked of Ray but how many.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import ray

from actors.backends import VISIBLE
from kvcluster.config import Backend, ConfigError, Settings, Sizes
from kvcluster.driver.cuda import CudaDevice, cuda_devices, cuda_support
from kvcluster.driver.cuda_devices import SUPPORT_REMEDY, device_named
from kvcluster.errors import DeviceMissing
from kvcluster.units import format_bytes

_SHARES = 10_000  # Ray counts GPUs in these


def gpus_of(settings: Settings) -> tuple[CudaDevice, ...]:
    """The GPUs that the settings name, of those that this process sees; none for host devices.

    Raises:
        ConfigError: one is named that is not there, or the sizes do not fit one.
        DeviceMissing, DriverError: there is no CUDA, it does not work, or a GPU lacks what we need.
    """
    if settings.backend is not Backend.CUDA:
        return ()
    seen = cuda_devices()
    numbers = range(len(seen)) if settings.device_numbers is None else settings.device_numbers
    if max(numbers, default=-1) >= len(seen):
        there = f"there are {len(seen)} here, cuda:0 to cuda:{len(seen) - 1}" if seen else "there is none here"
        raise ConfigError(f"devices is {settings.devices}, and {there}: name those, or look at {VISIBLE}")
    for number in numbers:
        gpu_sizes(seen[number].uuid, settings)
    return tuple(seen[number] for number in numbers)


def visible_to_ray(settings: Settings) -> str | None:
    """CUDA_VISIBLE_DEVICES for a Ray of our own, whose GPUs are to be those that are listed; None leaves it."""
    if settings.device_numbers is None or settings.backend is not Backend.CUDA:
        return None
    order = _order(len(cuda_devices()))
    return ",".join(order[number] for number in settings.device_numbers)


def gpu_share(settings: Settings, *, models: int = 1) -> float:
    """What of a GPU each worker of one of so many models asks Ray for; 0 for host devices."""
    if settings.backend is not Backend.CUDA:
        return 0.0
    return _SHARES // (settings.workers_per_device * models) / _SHARES


def given_gpu() -> str:
    """The UUID of the GPU that Ray gave to this actor.

    Raises:
        DeviceMissing, DriverError: there is no CUDA, or it does not work.
    """
    [given] = ray.get_runtime_context().get_accelerator_ids()["GPU"]
    return gpu_called(given, cuda_devices()).uuid


def gpu_called(given: str, seen: Sequence[CudaDevice]) -> CudaDevice:
    """The GPU that Ray calls so: by what CUDA_VISIBLE_DEVICES calls it, or else by its number.

    Raises:
        DeviceMissing: this process does not see it.
    """
    order = _order(len(seen))
    if given not in order[: len(seen)]:
        remedy = "start Ray with GPUs that CUDA sees (ray start --num-gpus)"
        raise DeviceMissing(device=given, reason="Ray gave it, and CUDA does not see it", remedy=remedy)
    return seen[order.index(given)]


def ordinal_of(uuid: str) -> int:
    """The number of this GPU in this process. Raises DeviceMissing where it does not see it."""
    return device_named(uuid, cuda_devices()).ordinal


def gpu_sizes(uuid: str, settings: Settings) -> Sizes:
    """The most memory that a device on this GPU may have, in whole granules, and the granule.

    Raises:
        ConfigError: the granule is none of this GPU's.
        DeviceMissing, DriverError: no such GPU, or it cannot be used.
    """
    gpu = device_named(uuid, cuda_devices())
    support = cuda_support(gpu)
    if support.missing:
        raise DeviceMissing(device=uuid, reason="; ".join(support.missing), remedy=SUPPORT_REMEDY)
    granule_bytes = settings.granule_bytes or support.recommended_bytes
    if granule_bytes % support.granule_bytes:
        raise ConfigError(
            f"granule is {settings.granule}, and must be a multiple of {format_bytes(support.granule_bytes)} on "
            f"{gpu.name}: leave it out, and it is {format_bytes(support.recommended_bytes)}"
        )
    most_bytes = min(settings.device_memory_bytes or gpu.total_bytes, gpu.total_bytes)
    if most_bytes < granule_bytes:
        granule = f"a granule, which is {format_bytes(granule_bytes)} on {gpu.name}"
        raise ConfigError(f"device_memory is {settings.device_memory}, and must be at least {granule}")
    return Sizes(most_bytes // granule_bytes * granule_bytes, granule_bytes)


def _order(count: int) -> list[str]:
    """What each GPU that this process sees is called, for Ray: as in CUDA_VISIBLE_DEVICES, or by number."""
    visible = os.environ.get(VISIBLE)
    return visible.split(",") if visible else [str(number) for number in range(count)]
