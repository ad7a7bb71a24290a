"""What is known of a GPU before a driver is opened on it, and how one is named: values, nothing is asked here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kvcluster.errors import DeviceMissing

DRIVER_REMEDY: Final = "install NVIDIA's driver (libcuda.so.1) on this machine, or use the host device"
BINDINGS_REMEDY: Final = "install the bindings (pip install 'kvcluster[gpu]'), or use the host device"
SUPPORT_REMEDY: Final = "use a GPU, driver and container that allow it, or the host device"
FORK_REMEDY: Final = "start the process by spawn or exec: CUDA does not survive a fork"


@dataclass(frozen=True, slots=True)
class CudaDevice:
    """A GPU that this process sees. The UUID is its name everywhere; the ordinal is this process's own."""

    ordinal: int
    uuid: str
    name: str
    total_bytes: int


@dataclass(frozen=True, slots=True)
class CudaSupport:
    """What a GPU offers us: `missing` has a sentence for each thing that it does not, and is empty for one that fits.

    `granule_bytes` is the minimum granularity of memory that can be shared, `recommended_bytes` the fast one; both 0
    where there is no such memory.
    """

    granule_bytes: int
    recommended_bytes: int
    missing: tuple[str, ...]


def device_named(name: str, devices: Sequence[CudaDevice]) -> CudaDevice:
    """The device that `name` means: "cuda:1" by its number here, "cuda" the first, "GPU-..." by UUID.

    Raises:
        ValueError: no such way to name a device.
        DeviceMissing: it is not among `devices`.
    """
    number = name.removeprefix("cuda:") if name != "cuda" else "0"
    if name.startswith("GPU-"):
        found = [device for device in devices if device.uuid.lower() == name.lower()]
    elif number != name and number.isdecimal():
        found = [device for device in devices if device.ordinal == int(number)]
    else:
        raise ValueError(f"{name!r} names no CUDA device: write 'cuda:0' or 'GPU-' and its UUID")
    if not found:
        seen = ", ".join(f"cuda:{device.ordinal} ({device.uuid})" for device in devices) or "none"
        remedy = "choose one of them, or let this process see more (CUDA_VISIBLE_DEVICES)"
        raise DeviceMissing(device=name, reason=f"the devices that this process sees are: {seen}", remedy=remedy)
    return found[0]
