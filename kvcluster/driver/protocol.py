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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from kvcluster.transaction import Progress


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


class Fence(Protocol):
    """Work of this process that was under way when the fence was made."""

    def done(self) -> bool:
        """Whether all of it has ended. Once True, always True.

        Raises:
            DriverError: it cannot be confirmed. Then nothing that the work may touch may be unmapped or freed.
        """

    def wait(self) -> None:
        """Return when all of it has ended. Raises as `done` does."""


class Driver(Protocol):
    @property
    def granularity_bytes(self) -> int:
        """Sizes and addresses are multiples of this; asked from the driver, never assumed."""

    @property
    def is_host_memory(self) -> bool:
        """Whether the CPU can read and write what is mapped, at the same addresses."""

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

    def map(self, address: int, handles: Sequence[PhysicalHandle], done: Progress) -> None:
        """Put the whole of each handle side by side from `address` on, in a reserved range with nothing mapped there.

        No access yet. `done.count` rises with each handle that is mapped: a call of the hardware each.

        Raises:
            LimitReached: mappings are used up. Nothing changed, unless the hardware noticed it, as below.
            DriverError: a rule is broken, and nothing changed. Or a call failed: the handles before it are mapped, and
                `done.count` says how many, so that the caller can take them back.
        """

    def set_access(self, address: int, size_bytes: int, access: Access) -> None:
        """Allow reads, or reads and writes, of whole mappings that fill [address, address + size_bytes).

        Raises:
            DriverError: a rule or the call failed (writes to sealed memory among them). What is mapped stays mapped,
                with the access it had.
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

    def seal(self, handle: PhysicalHandle) -> None:
        """From now on the handle's memory can be read and never written; sealing it again changes nothing.

        On the host the kernel holds it, for every process and for good. On CUDA this driver refuses READ_WRITE to it
        and its importers are trusted to ask for READ: a process protects itself, and the hardware stops its stray
        writes. Sealed memory is not to be used for anything else: there is no way back.

        Raises:
            DriverError: it is mapped, in this process or (host) mapped or held writable in another, or the call
                failed. Not sealed.
        """

    def export_fd(self, handle: PhysicalHandle) -> int:
        """A new descriptor for the handle's memory, close-on-exec; the caller owns and closes it.

        That of sealed memory is good for reading only.

        Raises:
            LimitReached: descriptors are used up. Nothing changed.
            DriverError: the handle is unknown. Nothing changed.
        """

    def import_fd(self, descriptor: int, size_bytes: int) -> PhysicalHandle:
        """A handle on memory that another process exported. The caller still owns `descriptor`.

        Memory that was sealed before it was exported is sealed here too (on the host; on CUDA nothing tells).

        Raises:
            DriverError: not such memory, or not of this size. Nothing changed.
        """

    def synchronize(self) -> None:
        """Wait until no work of this process that may touch its mappings is running.

        Raises:
            DriverError: it cannot be confirmed. Then nothing that may be in use may be unmapped or freed.
        """

    def fence(self, stream: int = 0) -> Fence:
        """What of this process's work, in `stream` (CUDA) or under `HostDriver.working`, is under way now.

        Raises:
            DriverError: the call failed. Nothing changed.
        """

    def memory_info(self) -> MemoryInfo:
        """What the hardware says."""

    def scrub(self, handle: PhysicalHandle) -> None:
        """Overwrite the handle's memory with zeros.

        Raises:
            DriverError: the call failed. The content is undefined; the memory is mapped where it was and nowhere else.
            Quarantined: and the memory is still mapped where the driver wrote the zeros, which may be on their way.
                It is not to be used for anything again; releasing the handle would not free it. The cause says what
                failed first.
        """

    def calls(self) -> Mapping[str, int]:
        """How often each call that reaches the hardware was made, by its name here, since the driver was opened."""

    def close(self) -> None:
        """Give back what the driver itself holds. Handles and ranges still open are leaked to the process's end."""
