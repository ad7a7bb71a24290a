"""A host driver's handles: which memfd each one names, what it holds, and when it is closed.

Memory that was created here lives until it is released *and* mapped nowhere in this process; so long its descriptor
stays open, for the kernel's own figure of what it holds, and its bytes stay charged, whatever order the two come in.
What was imported is somebody else's charge: its descriptor is closed at the release, because its mappings need none,
and a process may then map as much as the kernel lets it and not only as much as it may have open.

Sealed memory is held by a descriptor that reads only, and so is what comes in by such a one: it is never mapped to be
written, and what is exported of it reads only.

Closing cannot fail here: whatever error Linux reports, the descriptor is gone (close(2)).
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvcluster.driver import linux
from kvcluster.driver.books import Piece, RuleBroken
from kvcluster.driver.limits import DESCRIPTORS, MEMORY
from kvcluster.driver.numbers import next_number
from kvcluster.driver.protocol import PhysicalHandle
from kvcluster.errors import LimitReached


@dataclass(slots=True, eq=False)
class Memory:
    """One memfd; `mappings` counts where it is mapped here. Its pieces of address name it as their owner."""

    number: int
    descriptor: int
    size_bytes: int
    is_imported: bool = False
    is_read_only: bool = False
    is_sealed: bool = False
    mappings: int = 0
    is_released: bool = False
    is_open: bool = True

    def check_writable(self) -> None:
        """
        Raises:
            RuleBroken: it is sealed, or came in by a descriptor that reads only.
        """
        if self.is_read_only:
            raise RuleBroken("sealed memory is never written")

    def close(self) -> None:
        """Give the descriptor up; the mappings live on."""
        self.is_open = False
        DESCRIPTORS.used(-1)
        with contextlib.suppress(OSError):
            os.close(self.descriptor)


def check_writable(pieces: Iterable[Piece]) -> None:
    """
    Raises:
        RuleBroken: the memory that owns one of them is not.
    """
    for _, _, memory in pieces:
        if memory.is_read_only:  # looked at here, because a call for each window is what a commit would feel
            memory.check_writable()


class Memories:
    """All handles of one driver that are alive, and the bytes that they are charged."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.has_read_only = False  # once one of them was, whatever became of it
        self._charged_bytes = 0
        self._memories: dict[int, Memory] = {}

    def check_room(self, size_bytes: int) -> None:
        """
        Raises:
            OSError: ENOMEM, as the kernel would say: the capacity or the machine's memory does not suffice.
        """
        if self._charged_bytes + size_bytes > self.capacity_bytes:
            raise OSError(errno.ENOMEM, f"the capacity is {self.capacity_bytes} bytes")
        try:
            MEMORY.ensure(size_bytes)
        except LimitReached as full:
            raise OSError(errno.ENOMEM, str(full)) from full

    def create(self, size_bytes: int) -> PhysicalHandle:
        memory = Memory(next_number(), linux.create_memory(size_bytes), size_bytes)
        self._charge(size_bytes)
        return self._keep(memory)

    def adopt(self, descriptor: int, size_bytes: int) -> PhysicalHandle:
        """A handle on a duplicate of `descriptor`, if it is memory of exactly this size.

        Raises:
            RuleBroken: it is not.
        """
        seals = linux.seals_of(descriptor)
        if not linux.is_fixed(seals) or linux.size_of(descriptor) != size_bytes:
            raise RuleBroken(f"the descriptor is not memory of exactly {size_bytes} bytes")
        is_sealed, is_read_only = linux.is_sealed(seals), linux.is_read_only(descriptor)
        copy = linux.reopened_for_reading if is_sealed and not is_read_only else linux.duplicate
        own, is_read_only = copy(descriptor), is_sealed or is_read_only
        self.has_read_only |= is_read_only
        return self._keep(Memory(next_number(), own, size_bytes, True, is_read_only, is_sealed))

    def seal(self, memory: Memory) -> None:
        """Seal it and hold it for reading only; sealed by somebody else already is as good.

        Raises:
            OSError: it is not sealed, and held as before.
        """
        readable = linux.reopened_for_reading(memory.descriptor)
        try:
            if not linux.is_sealed(linux.seals_of(memory.descriptor)):
                linux.seal(memory.descriptor)
        except OSError:
            os.close(readable)
            raise
        with contextlib.suppress(OSError):
            os.close(memory.descriptor)
        memory.descriptor, memory.is_read_only, memory.is_sealed = readable, True, True
        self.has_read_only = True

    def find(self, handle: PhysicalHandle) -> Memory:
        """
        Raises:
            RuleBroken: unknown, of another size, or released.
        """
        [memory] = self.find_all([handle])
        return memory

    def find_all(self, handles: Sequence[PhysicalHandle]) -> list[Memory]:
        """The same for each of many."""
        memories, found = self._memories, []
        for handle in handles:
            memory = memories.get(handle.number)
            if memory is None or memory.is_released or memory.size_bytes != handle.size_bytes:
                raise RuleBroken(f"{handle} is not a handle of this driver, or was released")
            found.append(memory)
        return found

    def release(self, memory: Memory) -> None:
        memory.is_released = True
        if memory.mappings == 0:
            self._bury(memory)
        elif memory.is_imported:
            memory.close()

    def unmapped(self, pieces: Iterable[Piece]) -> None:
        """The memory that owns each piece is mapped at one place less."""
        for _, _, memory in pieces:
            memory.mappings = left = memory.mappings - 1
            if not left and memory.is_released:
                self._bury(memory)

    def held_bytes(self) -> int:
        """What the kernel has allocated to the memory that was created here."""
        ours = (memory for memory in self._memories.values() if not memory.is_imported)
        return sum(linux.held_bytes(memory.descriptor) for memory in ours)

    def _keep(self, memory: Memory) -> PhysicalHandle:
        self._memories[memory.number] = memory
        DESCRIPTORS.used(1)
        return PhysicalHandle(memory.number, memory.size_bytes)

    def _bury(self, memory: Memory) -> None:
        del self._memories[memory.number]
        if not memory.is_imported:
            self._charge(-memory.size_bytes)
        if memory.is_open:
            memory.close()

    def _charge(self, size_bytes: int) -> None:
        self._charged_bytes += size_bytes
        MEMORY.used(size_bytes)
