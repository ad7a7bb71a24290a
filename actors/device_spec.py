"""What a device actor is made of, and what it says of itself: values that travel through Ray."""

from __future__ import annotations

from dataclasses import dataclass

from kvcluster.budget.quotas import Quotas
from kvcluster.config import Backend, Sizes
from kvcluster.services.device_settings import DeviceSettings


@dataclass(frozen=True, slots=True)
class GpuUse:
    """How a device actor comes to its GPU: it sees those that its maker sees, and takes what is free for `utilization`.

    `visible` is CUDA_VISIBLE_DEVICES; None where it is not set.
    """

    utilization: float
    visible: str | None


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """`node_id` is where the device is: an actor that finds itself elsewhere ends for good.

    With `gpu` the device is the GPU whose UUID is its name, and its memory the most that it may have.
    """

    settings: DeviceSettings
    node_id: str
    idle_exit_s: float
    gpu: GpuUse | None = None

    @property
    def sizes(self) -> Sizes:
        """As they were asked for."""
        memory = self.settings.memory
        return Sizes(memory.capacity_bytes, memory.granule_bytes)


@dataclass(frozen=True, slots=True)
class DeviceAddress:
    """What a client must know before it says hello. `asked` and `quotas` are what the device was made with."""

    attach: str
    pid: int
    name: str
    backend: Backend
    asked: Sizes
    quotas: Quotas
    descriptors: int  # its process had room for so many before it created any memory
    file: str  # of its incarnations
