"""A host driver's handles: which memfd each one names, what it holds, and when it is closed.

Memory that was created here lives until it is released *and* mapped nowhere in this process; so long its descriptor
stays open, for the kernel's own figure of what it holds, and its bytes stay charged, whatever order the two come in.
What was imported is somebody else's charge: its descriptor is closed at the release, because its mappings need none,
and a process may then map as much as the kernel lets it and not only as much as it may have open.

Closing cannot fail here: whatever error Linux reports, the descriptor is gone (close(2)).
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from collections.abc import Iterable
from dataclasses import dataclass

from kvcluster.driver import linux
from kvcluster.driver.books import Piece, RuleBroken
from kvcluster.driver.limits import DESCRIPTORS, MEMORY
from kvcluster.driver.protocol import PhysicalHandle
from kvcluster.errors import LimitReached

_numbers = itertools.count(1)  # over all drivers of the process: another driver's handle is never taken for ours


@dataclass(slots=True)
class Memory:
    """One memfd; `mappings` counts where it is mapped here."""

    descriptor: int
    size_bytes: int
    is_imported: bool
    mappings: int = 0
    is_released: bool = False
    is_open: bool = True

    def close(self) -> None:
        """Give the descriptor up; the mappings live on."""
        self.is_open = False
        DESCRIPTORS.used(-1)
        with contextlib.suppress(OSError):
            os.close(self.descriptor)


class Memories:
    """All handles of one driver that are alive, and the bytes that they are charged."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
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
        handle = self._keep(Memory(linux.create_memory(size_bytes), size_bytes, is_imported=False))
        self._charge(size_bytes)
        return handle

    def adopt(self, descriptor: int, size_bytes: int) -> PhysicalHandle:
        """A handle on a duplicate of `descriptor`, if it is memory of exactly this size.

        Raises:
            RuleBroken: it is not.
        """
        if not linux.is_fixed_memory(descriptor, size_bytes):
            raise RuleBroken(f"the descriptor is not memory of exactly {size_bytes} bytes")
        return self._keep(Memory(linux.duplicate(descriptor), size_bytes, is_imported=True))

    def find(self, handle: PhysicalHandle) -> Memory:
        """
        Raises:
            RuleBroken: unknown, of another size, or released.
        """
        memory = self._memories.get(handle.number)
        if memory is None or memory.is_released or memory.size_bytes != handle.size_bytes:
            raise RuleBroken(f"{handle} is not a handle of this driver, or was released")
        return memory

    def release(self, number: int) -> None:
        memory = self._memories[number]
        memory.is_released = True
        if memory.mappings == 0:
            self._bury(number)
        elif memory.is_imported:
            memory.close()

    def unmapped(self, pieces: Iterable[Piece]) -> None:
        """The memory that each piece names is mapped at one place less."""
        for _, _, number in pieces:
            memory = self._memories[number]
            memory.mappings -= 1
            if memory.is_released and memory.mappings == 0:
                self._bury(number)

    def held_bytes(self) -> int:
        """What the kernel has allocated to the memory that was created here."""
        ours = (memory for memory in self._memories.values() if not memory.is_imported)
        return sum(linux.held_bytes(memory.descriptor) for memory in ours)

    def _keep(self, memory: Memory) -> PhysicalHandle:
        handle = PhysicalHandle(next(_numbers), memory.size_bytes)
        self._memories[handle.number] = memory
        DESCRIPTORS.used(1)
        return handle

    def _bury(self, number: int) -> None:
        memory = self._memories.pop(number)
        if not memory.is_imported:
            self._charge(-memory.size_bytes)
        if memory.is_open:
            memory.close()

    def _charge(self, size_bytes: int) -> None:
        self._charged_bytes += size_bytes
        MEMORY.used(size_bytes)
