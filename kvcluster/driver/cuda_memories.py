"""A CUDA driver's handles: what each names to CUDA, where it is mapped, and whether it still counts as held.

CUDA has no figure of what a process's handles hold, so `held_bytes` is counted here: what was created and is not
both released and mapped nowhere. Sealing is a mark of this driver's own; CUDA has none. Nothing here calls CUDA.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvcluster.driver.books import Piece, RuleBroken
from kvcluster.driver.numbers import next_number
from kvcluster.driver.protocol import PhysicalHandle


@dataclass(slots=True, eq=False)
class CudaMemory:
    """`raw` is CUDA's own handle; `mappings` counts where it is mapped here. Its pieces of address name it as owner."""

    number: int
    raw: int
    size_bytes: int
    is_imported: bool
    is_sealed: bool = False
    is_released: bool = False
    mappings: int = 0

    def check_writable(self) -> None:
        """
        Raises:
            RuleBroken: it is sealed.
        """
        if self.is_sealed:
            raise RuleBroken("sealed memory is never written")

    def check_unmapped(self) -> None:
        """
        Raises:
            RuleBroken: it is mapped.
        """
        if self.mappings:
            raise RuleBroken("the memory is mapped in this process")


class CudaMemories:
    """All handles of one driver that are alive."""

    def __init__(self) -> None:
        self._memories: dict[int, CudaMemory] = {}
        self.held_bytes = 0

    def keep(self, raw: int, size_bytes: int, *, is_imported: bool) -> PhysicalHandle:
        memory = CudaMemory(next_number(), raw, size_bytes, is_imported)
        self._memories[memory.number] = memory
        self.held_bytes += 0 if is_imported else size_bytes
        return PhysicalHandle(memory.number, size_bytes)

    def find(self, handle: PhysicalHandle) -> CudaMemory:
        """
        Raises:
            RuleBroken: unknown, of another size, or released.
        """
        memory = self._memories.get(handle.number)
        if memory is None or memory.is_released or memory.size_bytes != handle.size_bytes:
            raise RuleBroken(f"{handle} is not a handle of this driver, or was released")
        return memory

    def released(self, memory: CudaMemory) -> None:
        """CUDA has taken the handle back."""
        memory.is_released = True
        self._bury_if_gone(memory)

    def unmapped(self, pieces: Iterable[Piece]) -> None:
        """The memory that owns each piece is mapped at one place less."""
        for _, _, memory in pieces:
            memory.mappings -= 1
            self._bury_if_gone(memory)

    def _bury_if_gone(self, memory: CudaMemory) -> None:
        if memory.is_released and memory.mappings == 0:
            del self._memories[memory.number]
            self.held_bytes -= 0 if memory.is_imported else memory.size_bytes
