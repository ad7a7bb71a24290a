"""What the rest asks of memory hardware: a dozen calls, each strict, each counted.

Two backends: `driver.host` (memfd and mmap) and, on a GPU, `driver.cuda`. Both obey the rules of CUDA's virtual
memory, the strictest of the two: sizes and addresses are multiples of the granularity; a handle is mapped whole;
a mapping has no access until set_access; unmap takes whole mappings, several adjacent ones in one call; an
address range is freed with nothing mapped in it. A call that breaks a rule raises DriverError before the
hardware is asked, and changes nothing.

This is not the place for policy: no budget, no pool, no reference counts.
Source: the CUDA driver API, "Virtual Memory Management".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol


class Access(Enum):
    READ = "read"
    READ_WRITE = "read-write"


@dataclass(frozen=True, slots=True)
class PhysicalHandle:
    """Physical memory, named: `number` is the driver's own and never used twice in its life."""

    number: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """`held_bytes` is what the hardware itself says our handles hold (st_blocks on the host), not our ledger."""

    total_bytes: int
    free_bytes: int
    held_bytes: int


class Driver(Protocol):
    @property
    def granularity_bytes(self) -> int:
        """Sizes and addresses are multiples of this; asked from the driver, never assumed."""

    def reserve(self, size_bytes: int) -> int:
        """An address range of `size_bytes`, with nothing in it. Returns its first address.

        Raises:
            LimitReached: no address space is left. Nothing changed.
            DriverError: the size is no multiple of the granularity, or the call failed. Nothing changed.
        """

    def create(self, size_bytes: int) -> PhysicalHandle:
        """New physical memory, its pages really allocated; content undefined.

        Raises:
            LimitReached: descriptors are used up. Nothing changed.
            DriverError: no memory, or a size that is no multiple of the granularity. Nothing changed.
        """

    def map(self, address: int, handle: PhysicalHandle) -> None:
        """Put the whole of `handle` at `address`, in a reserved range with nothing mapped there. No access yet.

        Raises:
            LimitReached: mappings are used up. Nothing changed.
            DriverError: a rule or the call failed. Nothing changed.
        """

    def set_access(self, address: int, size_bytes: int, access: Access) -> None:
        """Allow reads, or reads and writes, of whole mappings that fill [address, address + size_bytes).

        Raises:
            DriverError: a rule or the call failed. What is mapped stays mapped, with the access it had.
        """

    def unmap(self, address: int, size_bytes: int) -> None:
        """Take away whole mappings that fill [address, address + size_bytes); the range stays reserved.

        The caller has waited for every use of them (`synchronize`).

        Raises:
            DriverError: a rule or the call failed. All of it is still mapped.
        """

    def release(self, handle: PhysicalHandle) -> None:
        """Give the handle up. Its memory dies with the last mapping and the last exported descriptor.

        Raises:
            DriverError: unknown or already released, or the call failed. An unreleased handle stays valid.
        """

    def free_address(self, address: int, size_bytes: int) -> None:
        """Give back exactly a reserved range, with nothing mapped in it.

        Raises:
            DriverError: a rule or the call failed. The range stays reserved.
        """

    def export_fd(self, handle: PhysicalHandle) -> int:
        """A new descriptor for the handle's memory, close-on-exec; the caller owns and closes it.

        Raises:
            LimitReached: descriptors are used up. Nothing changed.
            DriverError: the handle is unknown. Nothing changed.
        """

    def import_fd(self, descriptor: int, size_bytes: int) -> PhysicalHandle:
        """A handle on memory that another process exported. The caller still owns `descriptor`.

        Raises:
            DriverError: not such memory, or not of this size. Nothing changed.
        """

    def synchronize(self) -> None:
        """Wait until no work of this process that may touch its mappings is running.

        Raises:
            DriverError: it cannot be confirmed. Then nothing that may be in use may be unmapped or freed.
        """

    def memory_info(self) -> MemoryInfo:
        """What the hardware says."""

    def scrub(self, handle: PhysicalHandle) -> None:
        """Overwrite the handle's memory with zeros.

        Raises:
            DriverError: the call failed. The content is undefined.
        """

    def calls(self) -> Mapping[str, int]:
        """How often each call that reaches the hardware was made, by its name here, since the driver was opened."""

    def close(self) -> None:
        """Give back what the driver itself holds. Handles and ranges still open are leaked to the process's end."""
