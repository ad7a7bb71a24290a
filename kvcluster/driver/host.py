"""The host device: one memfd a handle, mapped into reserved address by mmap. Needs Linux, and no GPU.

Obeys the rules of CUDA's virtual memory exactly, so that what runs here runs there: every violation is a
DriverError (EINVAL, its cause says which rule) before any system call. Pages are allocated at create; capacity is
enforced there too. 2 MiB: create 478 us, map 4, access 1, unmap 3; first touch costs more than all of them, and is
spared to whoever writes there (`driver.population`).

A process that only imports uses the same class: imported handles are not charged to the capacity.

"No CUDA after fork" holds here too: a forked child has no mapping that had access (`driver.linux`), so that a touch
there is a SIGSEGV of its own, and the driver that it inherited refuses every call; one that it opens itself works.
"""

from __future__ import annotations

import errno
import mmap
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from kvcluster.driver import linux
from kvcluster.driver.books import AddressBook, RuleBroken, Shelf, side_by_side
from kvcluster.driver.limits import (
    DESCRIPTORS,
    MAPPINGS,
    descriptor_room,
    mapping_room,
    memory_room,
    raise_descriptor_limit,
)
from kvcluster.driver.memories import Memories, check_writable
from kvcluster.driver.population import Population
from kvcluster.driver.protocol import Access, MemoryInfo, PhysicalHandle
from kvcluster.driver.strict import Asked, Entrance, strict
from kvcluster.driver.work import HostFence, Works
from kvcluster.errors import DriverError, LimitReached
from kvcluster.transaction import Progress
from kvcluster.units import KIB

__all__ = ["HostDriver", "descriptor_room", "mapping_room", "memory_room", "open_host_driver"]


def open_host_driver(*, capacity_bytes: int, granule_bytes: int = 64 * KIB) -> HostDriver:
    """A driver for at most `capacity_bytes` of host memory; raises the process's soft descriptor limit.

    Raises:
        ValueError: the granule is no power of two from the page up, or the capacity is negative.
    """
    if granule_bytes < mmap.PAGESIZE or granule_bytes & (granule_bytes - 1):
        raise ValueError(f"a granule is a power of two of at least {mmap.PAGESIZE} bytes, not {granule_bytes}")
    if capacity_bytes < 0:
        raise ValueError(f"a capacity is at least 0 bytes, not {capacity_bytes}")
    raise_descriptor_limit()
    return HostDriver(granule_bytes=granule_bytes, capacity_bytes=capacity_bytes)


class HostDriver:
    """`kvcluster.driver.protocol.Driver` over memfd and mmap. Safe to call from several threads."""

    def __init__(self, *, granule_bytes: int, capacity_bytes: int) -> None:
        self._book = AddressBook(granule_bytes)
        self._memories = Memories(capacity_bytes)
        self._calls: defaultdict[str, int] = defaultdict(int)
        self._works = Works()
        self._entrance = Entrance(_as_ours)
        self._population = Population(self._populate, granule_bytes)

    @property
    def granularity_bytes(self) -> int:
        return self._book.granule_bytes

    @property
    def is_host_memory(self) -> bool:
        return True

    @strict
    def reserve(self, size_bytes: int) -> int:
        self._book.check_size(size_bytes)
        MAPPINGS.ensure(1)
        self._calls["reserve"] += 1
        address = linux.reserve(size_bytes, self.granularity_bytes)
        self._book.add(Shelf(address, size_bytes, self.granularity_bytes))
        MAPPINGS.used(1)
        return address

    @strict
    def create(self, size_bytes: int) -> PhysicalHandle:
        self._book.check_size(size_bytes)
        self._memories.check_room(size_bytes)
        DESCRIPTORS.ensure(1)
        self._calls["create"] += 1
        return self._memories.create(size_bytes)

    @strict
    def map(self, address: int, handles: Sequence[PhysicalHandle], done: Progress) -> None:
        memories = self._memories.find_all(handles)
        shelf, pieces = self._book.shelf_of(address), side_by_side(address, memories)
        MAPPINGS.ensure(len(pieces) + 1)
        MAPPINGS.used(shelf.place(pieces))
        before = done.count
        try:
            linux.map_files(address, [(memory.size_bytes, memory.descriptor) for memory in memories], done)
        finally:
            mapped = done.count - before
            self._calls["map"] += min(mapped + 1, len(memories))  # the one that failed too
            for memory in memories[:mapped]:
                memory.mappings += 1
            if mapped < len(pieces):
                MAPPINGS.used(shelf.vacate(pieces[mapped:]))

    @strict
    def set_access(self, address: int, size_bytes: int, access: Access) -> None:
        pieces = self._book.shelf_of(address).filled(address, size_bytes)
        if access is Access.READ_WRITE and self._memories.has_read_only:
            check_writable(pieces)
        self._calls["set_access"] += 1
        linux.protect(address, size_bytes, linux.PROT_READ if access is Access.READ else linux.PROT_READ_WRITE)
        self._population.ask(address, size_bytes)

    @strict
    def unmap(self, address: int, size_bytes: int) -> None:
        shelf = self._book.shelf_of(address)
        pieces = shelf.filled(address, size_bytes)
        self._calls["unmap"] += 1
        linux.unmap_file(address, size_bytes)
        MAPPINGS.used(shelf.vacate(pieces))
        self._memories.unmapped(pieces)

    @strict
    def release(self, handle: PhysicalHandle) -> None:
        memory = self._memories.find(handle)
        self._calls["release"] += 1
        self._memories.release(memory)

    @strict
    def free_address(self, address: int, size_bytes: int) -> None:
        shelf = self._book.empty_shelf(address, size_bytes)
        self._calls["free_address"] += 1
        linux.unreserve(address, size_bytes)
        self._book.remove(shelf)
        MAPPINGS.used(-1)

    @strict
    def seal(self, handle: PhysicalHandle) -> None:
        memory = self._memories.find(handle)
        if memory.is_sealed:
            return
        if memory.mappings:
            raise RuleBroken("it is mapped here")
        self._calls["seal"] += 1
        self._memories.seal(memory)

    @strict
    def export_fd(self, handle: PhysicalHandle) -> int:
        memory = self._memories.find(handle)
        DESCRIPTORS.ensure(1)
        self._calls["export_fd"] += 1
        descriptor = linux.duplicate(memory.descriptor)
        DESCRIPTORS.used(1)  # whoever closes it does not tell us: the next measurement does
        return descriptor

    @strict
    def import_fd(self, descriptor: int, size_bytes: int) -> PhysicalHandle:
        self._book.check_import(descriptor, size_bytes)
        DESCRIPTORS.ensure(1)
        self._calls["import_fd"] += 1
        return self._memories.adopt(descriptor, size_bytes)

    @contextmanager
    def working(self) -> Iterator[None]:
        """The block is work under way, of whatever thread: fences and `synchronize` wait for it to end.

        Raises:
            DriverError: this is a forked child of the process that opened the driver, and has none of its memory.
        """
        try:
            self._entrance.check_process()
        except RuleBroken as broken:
            raise self._entrance.told(Asked("working"), broken) from broken
        with self._works.working():
            yield

    def synchronize(self) -> None:
        """As the protocol says; what is under way is what `working` said is. Others' calls go on meanwhile.

        Raises:
            DriverError: work of this thread is under way.
        """
        self._fence("synchronize").wait()

    def fence(self, stream: int = 0) -> HostFence:
        """As the protocol says; there are no streams here."""
        return self._fence("fence")

    def _fence(self, call: str) -> HostFence:
        with self._entrance.passing(call):
            self._calls[call] += 1
            return HostFence(self._works, self._entrance, call)

    @strict
    def memory_info(self) -> MemoryInfo:
        self._calls["memory_info"] += 1
        held, total = self._memories.held_bytes(), self._memories.capacity_bytes
        return MemoryInfo(total, max(0, total - held), held)

    @strict
    def scrub(self, handle: PhysicalHandle) -> None:
        memory = self._memories.find(handle)
        memory.check_writable()
        self._calls["scrub"] += 1
        linux.write_zeros(memory.descriptor, memory.size_bytes)

    def calls(self) -> Mapping[str, int]:
        with self._entrance.lock:
            return dict(self._calls)

    def close(self) -> None:
        with suppress(RuleBroken):  # in a forked child, which has no thread of it
            self._entrance.check_process()
            self._population.end()
        self._entrance.shut()

    def _populate(self, address: int, size_bytes: int) -> bool:
        """Of the population's thread: enter these pages, if they are still mapped; whether it is worth going on.

        Under the driver's lock, so that nothing is unmapped meanwhile; and without a wait for a gate that is closed.
        """
        with self._entrance.lock:
            if not self._entrance.is_open:
                return False
            try:
                pieces = self._book.shelf_of(address).filled(address, size_bytes)
            except RuleBroken:
                return False
            writable = not any(memory.is_read_only for _, _, memory in pieces)
            return linux.populate(address, size_bytes, writable=writable)


def _as_ours(asked: Asked, failure: Exception) -> LimitReached | DriverError:
    code = failure.errno or errno.EIO if isinstance(failure, OSError) else errno.EINVAL
    name = errno.errorcode.get(code, "?")
    if isinstance(failure, OSError) and (limit := _limit_behind(asked.call, code, asked.size_bytes)):
        return limit
    return DriverError(call=asked.call, code=code, name=name, address=asked.address, size_bytes=asked.size_bytes)


def _limit_behind(call: str, code: int, size_bytes: int) -> LimitReached | None:
    """The limit that the rest of the process used up between our measurement and the call, if it was one."""
    if call != "seal" and code in (errno.EMFILE, errno.ENFILE):  # which needs one for a moment, and keeps none
        return DESCRIPTORS.refusal(need=1, free=0)
    if (call, code) == ("map", errno.ENOMEM):
        return MAPPINGS.refusal(need=1, free=0)
    if (call, code) == ("reserve", errno.ENOMEM):
        remedy = "raise the address-space limit (ulimit -v) or reserve for fewer tokens"
        return LimitReached(limit="bytes of address", need=size_bytes, free=0, remedy=remedy)
    return None
