"""CUDA's calls with their codes, for questions that our driver would refuse to ask: no rules, no books.

Every call's answer is a value, also where it failed. What is mapped here is never given back: each question has a
process of its own, which may lose its context on it. Not for anything else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cuda.bindings import driver as cu


@dataclass(frozen=True, slots=True)
class Answer:
    """A call's status, and what it returned beside it."""

    code: int
    name: str
    value: Any = None

    def __str__(self) -> str:
        return f"{self.name.removeprefix('CUDA_')} ({self.code})"


class CallRefused(RuntimeError):
    """A call that the question presupposes failed."""


def ask(function: str, *arguments: Any) -> Answer:
    """Make the call. A missing entry point is NOT_FOUND, as no library answers for itself."""
    try:
        status, *found = getattr(cu, function)(*arguments)
    except RuntimeError:
        return Answer(500, "CUDA_ERROR_NOT_FOUND")
    except ValueError as unheard_of:  # a status that these bindings have no name for
        return Answer(999, f"CUDA_ERROR_UNKNOWN: {unheard_of}")
    return Answer(int(status), status.name, found[0] if len(found) == 1 else found)


def must(function: str, *arguments: Any) -> Any:
    """What the call returned.

    Raises:
        CallRefused: it failed.
    """
    answer = ask(function, *arguments)
    if answer.code:
        raise CallRefused(f"{function}: {answer}")
    return answer.value


@dataclass(frozen=True, slots=True)
class Mapped:
    address: int
    size_bytes: int
    handle: Any


class Raw:
    """One GPU, its primary context current on this thread; memory that can be shared by descriptor."""

    def __init__(self, ordinal: int) -> None:
        must("cuInit", 0)
        must("cuCtxSetCurrent", must("cuDevicePrimaryCtxRetain", must("cuDeviceGet", ordinal)))
        self.kind = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        self.property = cu.CUmemAllocationProp()
        self.property.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self.property.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        self.property.location.id = ordinal
        self.property.requestedHandleTypes = self.kind
        least = cu.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        self.granule = int(must("cuMemGetAllocationGranularity", self.property, least))
        self._ordinal = ordinal

    def access_to(self, *, writes: bool) -> list[Any]:
        """The list of one entry that gives this GPU access."""
        flags = cu.CUmemAccess_flags
        found = cu.CUmemAccessDesc()
        found.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        found.location.id = self._ordinal
        found.flags = flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE if writes else flags.CU_MEM_ACCESS_FLAGS_PROT_READ
        return [found]

    def set_access(self, address: int, size_bytes: int, *, writes: bool) -> Answer:
        return ask("cuMemSetAccess", address, size_bytes, self.access_to(writes=writes), 1)

    def reserve(self, size_bytes: int) -> int:
        return int(must("cuMemAddressReserve", size_bytes, 0, 0, 0))

    def create(self, size_bytes: int) -> Any:
        return must("cuMemCreate", size_bytes, self.property, 0)

    def map(self, address: int, size_bytes: int, handle: Any) -> Mapped:
        """No access yet."""
        must("cuMemMap", address, size_bytes, 0, handle, 0)
        return Mapped(address, size_bytes, handle)

    def mapped(self, granules: int = 1) -> Mapped:
        """New memory at a new address, without access."""
        size_bytes = granules * self.granule
        return self.map(self.reserve(size_bytes), size_bytes, self.create(size_bytes))

    def writable(self, granules: int = 1) -> Mapped:
        """New memory that can be written, full of zeros."""
        mapped = self.mapped(granules)
        must("cuMemSetAccess", mapped.address, mapped.size_bytes, self.access_to(writes=True), 1)
        must("cuMemsetD8", mapped.address, 0, mapped.size_bytes)
        must("cuCtxSynchronize")
        return mapped

    def adopted(self, descriptor: int, size_bytes: int, *, writes: bool) -> Mapped:
        """Another process's memory at a new address."""
        handle = must("cuMemImportFromShareableHandle", descriptor, self.kind)
        mapped = self.map(self.reserve(size_bytes), size_bytes, handle)
        must("cuMemSetAccess", mapped.address, size_bytes, self.access_to(writes=writes), 1)
        return mapped

    def export(self, handle: Any) -> int:
        """A descriptor; the caller closes it."""
        return int(must("cuMemExportToShareableHandle", handle, self.kind, 0))

    def free_bytes(self) -> int:
        return int(must("cuMemGetInfo")[0])


def number_at(address: int) -> int:
    """The eight bytes there, once the copy has come through."""
    content = bytearray(8)
    must("cuMemcpyDtoH", content, address, len(content))
    return int.from_bytes(content, "little")
