"""GPUs: which there are, whether they fit, and a driver on one. The only file that imports the bindings.

Importing it loads neither them nor libcuda; the first call that needs them does. A device fits if it maps virtual
memory and shares it by POSIX descriptors: that is asked, and then tried, because a container may forbid what the
device offers. Not the place for CUDA's calls (`cuda_hardware`) nor for rules and books (`cuda_driver`).
Source: the CUDA driver API, "Device Management", "Virtual Memory Management".
"""

from __future__ import annotations

import os
import uuid
from contextlib import ExitStack
from functools import cache
from typing import Any

from kvcluster.driver.cuda_devices import (
    BINDINGS_REMEDY,
    DRIVER_REMEDY,
    FORK_REMEDY,
    SUPPORT_REMEDY,
    CudaDevice,
    CudaSupport,
    device_named,
)
from kvcluster.driver.cuda_driver import CudaDriver
from kvcluster.driver.cuda_failures import NO_DEVICE, UNSUPPORTED, CudaFailed, as_ours
from kvcluster.driver.cuda_hardware import CudaHardware, ask, asked_if_supported, check, shareable
from kvcluster.driver.limits import raise_descriptor_limit
from kvcluster.driver.protocol import Access
from kvcluster.driver.strict import Asked
from kvcluster.errors import DeviceMissing

__all__ = ["CudaDevice", "CudaDriver", "CudaSupport", "cuda_devices", "cuda_support", "open_cuda_driver"]

_used_by: int | None = None  # the process that called CUDA first


def cuda_devices() -> tuple[CudaDevice, ...]:
    """The GPUs that this process sees, in the order of their numbers here; none where there are none.

    Raises:
        DeviceMissing: the bindings or libcuda are not there, or this is a forked child of a process that used CUDA.
        DriverError: CUDA is there and does not work.
    """
    try:
        cu = _initialized()
        return tuple(_device(cu, ordinal) for ordinal in range(ask(cu.cuDeviceGetCount)))
    except CudaFailed as failure:
        if failure.code == NO_DEVICE:
            return ()
        raise as_ours(Asked(failure.function), failure) from failure


def cuda_support(device: CudaDevice) -> CudaSupport:
    """What the device says that it offers; nothing is tried, and no context is made.

    Raises:
        DeviceMissing, DriverError: as `cuda_devices`.
    """
    try:
        cu = _initialized()
        missing = tuple(sentence for attribute, sentence in _needed(cu) if not _has(cu, attribute, device.ordinal))
        if missing:
            return CudaSupport(0, 0, missing)
        kinds = cu.CUmemAllocationGranularity_flags
        least = _granule(cu, device.ordinal, kinds.CU_MEM_ALLOC_GRANULARITY_MINIMUM)
        best = _granule(cu, device.ordinal, kinds.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
        return CudaSupport(least, best, () if least else ("memory of this kind is not supported",))
    except CudaFailed as failure:
        raise as_ours(Asked(failure.function), failure) from failure


def open_cuda_driver(device: str = "cuda:0") -> CudaDriver:
    """A driver for the GPU with this number here ("cuda:0") or this UUID ("GPU-..."); raises the descriptor limit.

    Takes a granule for a moment, to see that its memory can be mapped and shared and whether the CPU reaches it.

    Raises:
        ValueError: `device` is no name of a CUDA device.
        DeviceMissing: no bindings, libcuda or such device, or it lacks what the sentence names.
        DriverError: CUDA is there and does not work, or has not a granule left.
    """
    found = device_named(device, cuda_devices())
    support = cuda_support(found)
    if support.missing:
        raise DeviceMissing(device=device, reason="; ".join(support.missing), remedy=SUPPORT_REMEDY)
    raise_descriptor_limit()
    try:
        cuda = CudaHardware(_initialized(), found.ordinal)
        with cuda.bound():
            is_host_memory = _try_out(cuda, support.granule_bytes)
    except CudaFailed as failure:
        if failure.code in UNSUPPORTED:
            raise DeviceMissing(device=device, reason=str(failure), remedy=SUPPORT_REMEDY) from failure
        raise as_ours(Asked(failure.function), failure) from failure
    return CudaDriver(cuda, granule_bytes=support.granule_bytes, is_host_memory=is_host_memory)


@cache
def _bindings() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError as absent:
        reason = "cuda.bindings cannot be imported"
        raise DeviceMissing(device="cuda", reason=reason, remedy=BINDINGS_REMEDY) from absent
    return driver


def _initialized() -> Any:
    global _used_by
    cu = _bindings()
    if _used_by not in (None, os.getpid()):
        reason = "this process was forked from one that used CUDA"
        raise DeviceMissing(device="cuda", reason=reason, remedy=FORK_REMEDY)
    try:
        status = cu.cuInit(0)
    except RuntimeError as absent:
        reason = "libcuda.so.1 cannot be loaded"
        raise DeviceMissing(device="cuda", reason=reason, remedy=DRIVER_REMEDY) from absent
    _used_by = os.getpid()
    check("cuInit", status[0])
    return cu


def _device(cu: Any, ordinal: int) -> CudaDevice:
    device = ask(cu.cuDeviceGet, ordinal)
    identity = uuid.UUID(bytes=bytes(ask(cu.cuDeviceGetUuid, device).bytes))
    name = ask(cu.cuDeviceGetName, 256, device).split(b"\0")[0].decode()
    return CudaDevice(ordinal, f"GPU-{identity}", name, int(ask(cu.cuDeviceTotalMem, device)))


def _needed(cu: Any) -> tuple[tuple[Any, str], ...]:
    kinds = cu.CUdevice_attribute
    return (
        (
            kinds.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
            "the device has no virtual memory management",
        ),
        (
            kinds.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
            "the device's memory cannot be shared by POSIX descriptors",
        ),
    )


def _has(cu: Any, attribute: Any, ordinal: int) -> bool:
    return bool(asked_if_supported(cu.cuDeviceGetAttribute, attribute, ask(cu.cuDeviceGet, ordinal)))


def _granule(cu: Any, ordinal: int, kind: Any) -> int:
    """For exactly the memory that `create` makes; 0 where there is none of it."""
    return int(asked_if_supported(cu.cuMemGetAllocationGranularity, shareable(cu, ordinal), kind) or 0)


def _try_out(cuda: CudaHardware, granule_bytes: int) -> bool:
    """Whether the CPU reaches the memory; all of it was mapped and exported once, and nothing is left."""
    with ExitStack() as undo:
        address = cuda.reserve(granule_bytes)
        undo.callback(cuda.free_address, address, granule_bytes)
        raw = cuda.create(granule_bytes)
        undo.callback(cuda.release, raw)
        os.close(cuda.export_descriptor(raw))
        cuda.map(address, granule_bytes, raw)
        kept = undo.pop_all()  # until it is unmapped nothing of it may be given back
        try:
            cuda.set_access(address, granule_bytes, Access.READ_WRITE)
            return cuda.is_host_memory(address)
        finally:
            cuda.unmap(address, granule_bytes)
            kept.close()
