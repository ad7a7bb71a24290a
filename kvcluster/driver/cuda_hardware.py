"""One GPU's calls, as CUDA has them: each raises CudaFailed and keeps no books.

Works on the bindings module that it is given (`driver.cuda` alone knows which). Bindings answer with (status, ...)
tuples, and with RuntimeError where the library lacks an entry point; a pointer of theirs equals no integer until
int() makes it one. A device's primary context is retained once and never released: torch and others live in it.
Measured over a stand-in library: asking which context is current 0.12 us, setting it 0.27.
Source: the CUDA driver API, "Virtual Memory Management", "Primary Context Management".
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any

from kvcluster.driver.cuda_failures import NOT_FOUND, NOT_READY, UNKNOWN, UNSUPPORTED, CudaFailed
from kvcluster.driver.protocol import Access

_SUCCESS = 0
_NO_TIMING = 2  # an event that only says whether it has happened


class CudaHardware:
    """One GPU's calls; each raises CudaFailed and keeps no books. Their thread has the context bound (`bound`)."""

    def __init__(self, cu: Any, ordinal: int) -> None:
        self._cu = cu
        self._ordinal = ordinal
        self._context = _primary_context(cu, ordinal)
        self._property = shareable(cu, ordinal)
        self._descriptor_kind = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        flags = cu.CUmemAccess_flags
        self._access = {
            Access.READ: [_access(cu, ordinal, flags.CU_MEM_ACCESS_FLAGS_PROT_READ)],
            Access.READ_WRITE: [_access(cu, ordinal, flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE)],
        }

    def bound(self) -> Bound:
        """The block runs with this GPU's context current on its thread."""
        return Bound(self)

    def bind(self) -> int:
        """Make the context current; returns the one that was, 0 for none or this one."""
        before = int(ask(self._cu.cuCtxGetCurrent))
        if before == self._context:
            return 0
        ask(self._cu.cuCtxSetCurrent, self._context)
        return before

    def bind_again(self, context: int) -> None:
        """Put back what `bind` found. Its owner may have ended it since, and then nobody misses it."""
        self._cu.cuCtxSetCurrent(context)

    def reserve(self, size_bytes: int) -> int:
        return int(ask(self._cu.cuMemAddressReserve, size_bytes, 0, 0, 0))

    def free_address(self, address: int, size_bytes: int) -> None:
        ask(self._cu.cuMemAddressFree, address, size_bytes)

    def create(self, size_bytes: int) -> int:
        return int(ask(self._cu.cuMemCreate, size_bytes, self._property, 0))

    def release(self, raw: int) -> None:
        ask(self._cu.cuMemRelease, raw)

    def map(self, address: int, size_bytes: int, raw: int) -> None:
        ask(self._cu.cuMemMap, address, size_bytes, 0, raw, 0)

    def set_access(self, address: int, size_bytes: int, access: Access) -> None:
        ask(self._cu.cuMemSetAccess, address, size_bytes, self._access[access], 1)

    def unmap(self, address: int, size_bytes: int) -> None:
        ask(self._cu.cuMemUnmap, address, size_bytes)

    def export_descriptor(self, raw: int) -> int:
        """Close-on-exec is set here: nothing promises that the driver did."""
        descriptor = int(ask(self._cu.cuMemExportToShareableHandle, raw, self._descriptor_kind, 0))
        os.set_inheritable(descriptor, False)
        return descriptor

    def import_descriptor(self, descriptor: int) -> int:
        return int(ask(self._cu.cuMemImportFromShareableHandle, descriptor, self._descriptor_kind))

    def copy_in(self, address: int, content: bytes) -> None:
        ask(self._cu.cuMemcpyHtoD, address, content, len(content))

    def copy_out(self, address: int, size_bytes: int) -> bytes:
        content = bytearray(size_bytes)
        ask(self._cu.cuMemcpyDtoH, content, address, size_bytes)
        return bytes(content)

    def fill_with_zeros(self, address: int, size_bytes: int) -> None:
        ask(self._cu.cuMemsetD8, address, 0, size_bytes)

    def synchronize(self) -> None:
        ask(self._cu.cuCtxSynchronize)

    def memory_info(self) -> tuple[int, int]:
        """Free and total bytes of the GPU."""
        free_bytes, total_bytes = ask(self._cu.cuMemGetInfo)
        return int(free_bytes), int(total_bytes)

    def is_host_memory(self, address: int) -> bool:
        attribute = self._cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        kind = asked_if_supported(self._cu.cuPointerGetAttribute, attribute, address)
        return kind is not None and int(kind) == int(self._cu.CUmemorytype.CU_MEMORYTYPE_HOST)

    def create_event(self) -> int:
        return int(ask(self._cu.cuEventCreate, _NO_TIMING))

    def record(self, event: int, stream: int) -> None:
        ask(self._cu.cuEventRecord, event, stream)

    def has_ended(self, event: int) -> bool:
        try:
            ask(self._cu.cuEventQuery, event)
        except CudaFailed as failure:
            if failure.code == NOT_READY:
                return False
            raise
        return True

    def destroy_event(self, event: int) -> None:
        ask(self._cu.cuEventDestroy, event)


class Bound:
    """A block in which a GPU's context is current; the thread's own, if it had another, is put back."""

    __slots__ = ("_before", "_cuda")

    def __init__(self, cuda: CudaHardware) -> None:
        self._cuda = cuda
        self._before = 0

    def __enter__(self) -> CudaHardware:
        self._before = self._cuda.bind()
        return self._cuda

    def __exit__(self, *_: object) -> None:
        if self._before:
            self._cuda.bind_again(self._before)


def ask(function: Callable[..., Any], *arguments: Any) -> Any:
    """What the call returned beside its status."""
    try:
        status, *found = function(*arguments)
    except RuntimeError as missing:
        raise CudaFailed(function.__name__, NOT_FOUND, "CUDA_ERROR_NOT_FOUND") from missing
    except ValueError as unheard_of:  # a status that these bindings have no name for
        raise CudaFailed(function.__name__, UNKNOWN, "CUDA_ERROR_UNKNOWN") from unheard_of
    check(function.__name__, status)
    return found[0] if len(found) == 1 else found


def asked_if_supported(function: Callable[..., Any], *arguments: Any) -> Any:
    """As `ask`; None where this driver does not offer it."""
    try:
        return ask(function, *arguments)
    except CudaFailed as failure:
        if failure.code in UNSUPPORTED:
            return None
        raise


def check(function: str, status: Any) -> None:
    if status != _SUCCESS:
        raise CudaFailed(function, int(status), status.name)


@cache
def _primary_context(cu: Any, ordinal: int) -> int:
    return int(ask(cu.cuDevicePrimaryCtxRetain, ask(cu.cuDeviceGet, ordinal)))


def shareable(cu: Any, ordinal: int) -> Any:
    """Pinned memory of one GPU that can be exported by descriptor: fixed at create."""
    found = cu.CUmemAllocationProp()
    found.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    found.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    found.location.id = ordinal
    found.requestedHandleTypes = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    return found


def _access(cu: Any, ordinal: int, flags: Any) -> Any:
    found = cu.CUmemAccessDesc()
    found.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    found.location.id = ordinal
    found.flags = flags
    return found
