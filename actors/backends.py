"""Memory by its kind: what a device's process opens, and what its clients' do.

A GPU is opened by its UUID. How much of it is the device's cannot be known before: no more than was asked for, and no
more than a share of what is free now. It is measured again once a model is there (`DeviceService.measure`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from actors.device_spec import DeviceAddress, DeviceSpec
from kvcluster.attach.protocol import Survivor
from kvcluster.config import Backend, ConfigError
from kvcluster.driver.cuda import open_cuda_driver
from kvcluster.driver.host import open_host_driver
from kvcluster.driver.protocol import Driver
from kvcluster.services.device_settings import DeviceSettings, free_beside, what_is_there

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class OpenedDevice:
    """A driver, and the device's settings with the memory that there is."""

    driver: Driver
    settings: DeviceSettings


def open_device_driver(spec: DeviceSpec, survivors: Sequence[Survivor] = ()) -> OpenedDevice:
    """The driver of the device's own process. What `survivors` have mapped of a GPU is the device's, and not free.

    Raises:
        DeviceMissing: no such GPU here, or it lacks what we need.
        DriverError: CUDA is there and does not work.
        ConfigError: not a granule of its memory is free.
    """
    if spec.gpu is None:
        sizes = spec.sizes
        driver = open_host_driver(granule_bytes=sizes.granule_bytes, capacity_bytes=sizes.capacity_bytes)
        return OpenedDevice(driver, spec.settings)
    see_gpus(spec.gpu.visible)  # Ray may have hidden them all from an actor that asked for none
    foreign_bytes = sum(survivor.size_bytes for survivor in survivors)
    return _on_gpu(open_cuda_driver(spec.settings.name), spec.settings, spec.gpu.utilization, foreign_bytes)


def open_client_driver(address: DeviceAddress) -> Driver:
    """The driver of a client's process. Raises as `open_device_driver` does."""
    if address.backend is Backend.CUDA:
        return open_cuda_driver(address.name)
    sizes = address.asked
    return open_host_driver(granule_bytes=sizes.granule_bytes, capacity_bytes=sizes.capacity_bytes)


def see_gpus(visible: str | None) -> None:
    """From now on this process, if it has not called CUDA yet, and its children see these GPUs; None: all."""
    if visible is None:
        os.environ.pop(VISIBLE, None)
    else:
        os.environ[VISIBLE] = visible


@contextmanager
def gpus_visible(visible: str | None) -> Iterator[None]:
    """In the block children of this process see these GPUs; None: those that it sees itself."""
    before = os.environ.get(VISIBLE)
    see_gpus(before if visible is None else visible)
    try:
        yield
    finally:
        see_gpus(before)


def _on_gpu(driver: Driver, settings: DeviceSettings, utilization: float, foreign_bytes: int) -> OpenedDevice:
    asked_bytes = settings.memory.capacity_bytes
    free_bytes = free_beside(driver.memory_info(), foreign_bytes=foreign_bytes, asked_bytes=asked_bytes)
    try:
        memory = what_is_there(settings.memory, device=settings.name, free_bytes=free_bytes, utilization=utilization)
    except ValueError as too_little:
        raise ConfigError(str(too_little)) from None
    return OpenedDevice(driver, replace(settings, memory=memory))
