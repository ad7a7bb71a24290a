"""The driver over CUDA's virtual memory: our own books first, one call of CUDA after them.

A broken rule is a DriverError before CUDA is asked. A call that failed is believed: a failed unmap leaves its range
in the books as mapped, a failed release leaves the handle valid and charged. Capacity is the device ledger's, not
enforced here; who shares sealed memory is trusted to ask for READ (the importer chooses its own protection).

The context is bound on whatever thread calls, for the length of the call where the thread had another. No call in a
forked child, in `__del__` or at the interpreter's exit.
Source: the CUDA driver API, "Virtual Memory Management", "Event Management".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress

from kvcluster.driver.books import AddressBook, RuleBroken, Shelf, side_by_side
from kvcluster.driver.cuda_failures import CudaFailed, as_ours
from kvcluster.driver.cuda_fence import CudaFence, Events
from kvcluster.driver.cuda_hardware import Bound, CudaHardware
from kvcluster.driver.cuda_memories import CudaMemories, CudaMemory
from kvcluster.driver.limits import DESCRIPTORS
from kvcluster.driver.protocol import Access, MemoryInfo, PhysicalHandle
from kvcluster.driver.strict import Asked, Entrance, strict
from kvcluster.errors import DriverError, Quarantined, Residue
from kvcluster.transaction import Progress

_MOST_STREAM = 2**64 - 1  # a CUstream is an address


class CudaDriver:
    """`kvcluster.driver.protocol.Driver` over one GPU. Safe to call from several threads."""

    def __init__(self, cuda: CudaHardware, *, granule_bytes: int, is_host_memory: bool) -> None:
        self._cuda = cuda
        self._is_host_memory = is_host_memory
        self._book = AddressBook(granule_bytes)
        self._memories = CudaMemories()
        self._events = Events(cuda)
        self._calls: defaultdict[str, int] = defaultdict(int)
        self._entrance = Entrance(as_ours)

    @property
    def granularity_bytes(self) -> int:
        return self._book.granule_bytes

    @property
    def is_host_memory(self) -> bool:
        return self._is_host_memory

    @strict
    def reserve(self, size_bytes: int) -> int:
        self._book.check_size(size_bytes)
        with self._asking("reserve") as cuda:
            address = cuda.reserve(size_bytes)
        self._book.add(Shelf(address, size_bytes, self.granularity_bytes))
        return address

    @strict
    def create(self, size_bytes: int) -> PhysicalHandle:
        self._book.check_size(size_bytes)
        with self._asking("create") as cuda:
            raw = cuda.create(size_bytes)
        return self._memories.keep(raw, size_bytes, is_imported=False)

    @strict
    def map(self, address: int, handles: Sequence[PhysicalHandle], done: Progress) -> None:
        memories = [self._memories.find(handle) for handle in handles]
        shelf, pieces = self._book.shelf_of(address), side_by_side(address, memories)
        shelf.place(pieces)
        mapped = 0
        try:
            with self._cuda.bound() as cuda:
                for here, size_bytes, memory in pieces:
                    self._calls["map"] += 1
                    cuda.map(here, size_bytes, memory.raw)
                    memory.mappings += 1
                    done.count += 1
                    mapped += 1
        finally:
            if mapped < len(pieces):
                shelf.vacate(pieces[mapped:])

    @strict
    def set_access(self, address: int, size_bytes: int, access: Access) -> None:
        pieces = self._book.shelf_of(address).filled(address, size_bytes)
        if access is Access.READ_WRITE:
            for piece in pieces:
                piece.owner.check_writable()
        with self._asking("set_access") as cuda:
            cuda.set_access(address, size_bytes, access)

    @strict
    def unmap(self, address: int, size_bytes: int) -> None:
        shelf = self._book.shelf_of(address)
        pieces = shelf.filled(address, size_bytes)
        with self._asking("unmap") as cuda:
            cuda.unmap(address, size_bytes)
        shelf.vacate(pieces)
        self._memories.unmapped(pieces)

    @strict
    def release(self, handle: PhysicalHandle) -> None:
        memory = self._memories.find(handle)
        with self._asking("release") as cuda:
            cuda.release(memory.raw)
        self._memories.released(memory)

    @strict
    def free_address(self, address: int, size_bytes: int) -> None:
        shelf = self._book.empty_shelf(address, size_bytes)
        with self._asking("free_address") as cuda:
            cuda.free_address(address, size_bytes)
        self._book.remove(shelf)

    @strict
    def seal(self, handle: PhysicalHandle) -> None:
        memory = self._memories.find(handle)
        if memory.is_sealed:
            return
        memory.check_unmapped()
        self._calls["seal"] += 1
        memory.is_sealed = True

    @strict
    def export_fd(self, handle: PhysicalHandle) -> int:
        memory = self._memories.find(handle)
        DESCRIPTORS.ensure(1)
        with self._asking("export_fd") as cuda:
            descriptor = cuda.export_descriptor(memory.raw)
        DESCRIPTORS.used(1)  # whoever closes it does not tell us: the next measurement does
        return descriptor

    @strict
    def import_fd(self, descriptor: int, size_bytes: int) -> PhysicalHandle:
        """As the protocol says, but for the size: CUDA tells it nowhere, and another one fails when it is mapped.

        Nor is it said whose GPU's memory it is: a handle's properties have an ordinal, which may be that of the process
        that made it, and its GPUs may be numbered otherwise. Both sides open the driver by UUID instead.
        """
        self._book.check_import(descriptor, size_bytes)
        with self._asking("import_fd") as cuda:
            raw = cuda.import_descriptor(descriptor)
        return self._memories.keep(raw, size_bytes, is_imported=True)

    @strict
    def synchronize(self) -> None:
        """As the protocol says; other calls, and captures, wait meanwhile."""
        with self._asking("synchronize") as cuda:
            cuda.synchronize()

    @strict
    def fence(self, stream: int = 0) -> CudaFence:
        """As the protocol says; `stream` is a CUstream's address, 0 the default stream and all that blocks with it."""
        if not 0 <= stream <= _MOST_STREAM:
            raise RuleBroken(f"{stream} is no stream")
        with self._asking("fence"):
            return self._events.fence(self._entrance, stream)

    @strict
    def memory_info(self) -> MemoryInfo:
        """The device's total and free bytes, and what was created here and is not gone: CUDA has no such figure."""
        with self._asking("memory_info") as cuda:
            free_bytes, total_bytes = cuda.memory_info()
        return MemoryInfo(total_bytes, free_bytes, self._memories.held_bytes)

    @strict
    def scrub(self, handle: PhysicalHandle) -> None:
        """As the protocol says, at an address of its own."""
        memory = self._memories.find(handle)
        memory.check_writable()
        with self._asking("scrub") as cuda:
            address = self._map_at_scratch(cuda, memory)
            try:
                cuda.set_access(address, memory.size_bytes, Access.READ_WRITE)
                cuda.fill_with_zeros(address, memory.size_bytes)
            except CudaFailed as failure:
                self._unmap_at_scratch(cuda, address, memory, failure)
                raise
            self._unmap_at_scratch(cuda, address, memory)

    @strict
    def peek(self, address: int, size_bytes: int) -> bytes:
        """Copy mapped memory to the CPU, for whoever checks it (beside the protocol).

        Raises:
            DriverError: it is not mapped to be read.
        """
        with self._asking("peek") as cuda:
            return cuda.copy_out(address, size_bytes)

    @strict
    def poke(self, address: int, content: bytes) -> None:
        """Copy `content` into mapped memory.

        Raises:
            DriverError: it is not mapped to be written.
        """
        with self._asking("poke") as cuda:
            cuda.copy_in(address, content)

    def calls(self) -> Mapping[str, int]:
        with self._entrance.lock:
            return dict(self._calls)

    def close(self) -> None:
        with suppress(DriverError), self._entrance.passing("close"), self._cuda.bound():
            self._events.destroy()
        self._entrance.shut()

    def _asking(self, call: str) -> Bound:
        self._calls[call] += 1
        return self._cuda.bound()

    def _map_at_scratch(self, cuda: CudaHardware, memory: CudaMemory) -> int:
        """Map it at an address that nobody else knows, and in no book but the memory's own."""
        address = cuda.reserve(memory.size_bytes)
        try:
            cuda.map(address, memory.size_bytes, memory.raw)
        except CudaFailed:
            with suppress(CudaFailed):  # an address is lost, no memory: the first failure says more
                cuda.free_address(address, memory.size_bytes)
            raise
        memory.mappings += 1
        return address

    def _unmap_at_scratch(
        self, cuda: CudaHardware, address: int, memory: CudaMemory, first: CudaFailed | None = None
    ) -> None:
        """Undo `_map_at_scratch`, after a `first` failure or none."""
        try:
            cuda.synchronize()  # if this fails it stays mapped: the zeros may still be on their way
            cuda.unmap(address, memory.size_bytes)
        except CudaFailed as failure:
            asked = Asked("scrub", size_bytes=memory.size_bytes)
            residue = Residue("memory that was to be scrubbed is still mapped", memory.size_bytes)
            raise Quarantined(residue=(residue,)) from as_ours(asked, first or failure)
        memory.mappings -= 1
        with suppress(CudaFailed):  # as above
            cuda.free_address(address, memory.size_bytes)
