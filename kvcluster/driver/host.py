"""The host device: one memfd a handle, mapped into reserved address by mmap. Needs Linux, and no GPU.

Obeys the rules of CUDA's virtual memory exactly, so that what runs here runs there: every violation is a
DriverError (EINVAL, its cause says which rule) before any system call. Pages are allocated at create; capacity is
enforced there too. 2 MiB: create 478 us, map 4, access 1, unmap 3; first touch costs more than all of them.

A process that only imports uses the same class: imported handles are not charged to the capacity.
"""

from __future__ import annotations

import errno
import mmap
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from kvcluster.driver import linux
from kvcluster.driver.books import AddressBook, Piece, RuleBroken, Shelf
from kvcluster.driver.limits import (
    DESCRIPTORS,
    MAPPINGS,
    descriptor_room,
    mapping_room,
    memory_room,
    raise_descriptor_limit,
)
from kvcluster.driver.memories import Memories
from kvcluster.driver.protocol import Access, MemoryInfo, PhysicalHandle
from kvcluster.errors import DriverError, LimitReached
from kvcluster.units import KIB

__all__ = ["HostDriver", "descriptor_room", "mapping_room", "memory_room", "open_host_driver"]

_PROTECTIONS = {Access.READ: linux.PROT_READ, Access.READ_WRITE: linux.PROT_READ_WRITE}


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
        self._calls: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._closed = False

    @property
    def granularity_bytes(self) -> int:
        return self._book.granule_bytes

    def reserve(self, size_bytes: int) -> int:
        with self._call("reserve", size_bytes=size_bytes):
            self._book.check_size(size_bytes)
            MAPPINGS.ensure(1)
            self._calls["reserve"] += 1
            address = linux.reserve(size_bytes, self.granularity_bytes)
            self._book.add(Shelf(address, size_bytes))
            MAPPINGS.used(1)
            return address

    def create(self, size_bytes: int) -> PhysicalHandle:
        with self._call("create", size_bytes=size_bytes):
            self._book.check_size(size_bytes)
            self._memories.check_room(size_bytes)
            DESCRIPTORS.ensure(1)
            self._calls["create"] += 1
            return self._memories.create(size_bytes)

    def map(self, address: int, handle: PhysicalHandle) -> None:
        with self._call("map", address, handle.size_bytes):
            memory = self._memories.find(handle)
            shelf = self._book.shelf_at(address, handle.size_bytes)
            shelf.vacancy(address, handle.size_bytes)
            MAPPINGS.ensure(2)  # a piece in the middle of a gap makes two more
            self._calls["map"] += 1
            linux.map_file(address, handle.size_bytes, memory.descriptor)
            before = shelf.mappings
            shelf.occupy(Piece(address, handle.size_bytes, handle.number))
            memory.mappings += 1
            MAPPINGS.used(shelf.mappings - before)

    def set_access(self, address: int, size_bytes: int, access: Access) -> None:
        with self._call("set_access", address, size_bytes):
            self._book.shelf_at(address, size_bytes).filled(address, size_bytes)
            self._calls["set_access"] += 1
            linux.protect(address, size_bytes, _PROTECTIONS[access])

    def unmap(self, address: int, size_bytes: int) -> None:
        with self._call("unmap", address, size_bytes):
            shelf = self._book.shelf_at(address, size_bytes)
            pieces = shelf.filled(address, size_bytes)
            self._calls["unmap"] += 1
            linux.unmap_file(address, size_bytes)
            before = shelf.mappings
            shelf.vacate(pieces)
            MAPPINGS.used(shelf.mappings - before)
            for piece in pieces:
                self._memories.unmapped(piece.owner)

    def release(self, handle: PhysicalHandle) -> None:
        with self._call("release", size_bytes=handle.size_bytes):
            self._memories.find(handle)
            self._calls["release"] += 1
            self._memories.release(handle.number)

    def free_address(self, address: int, size_bytes: int) -> None:
        with self._call("free_address", address, size_bytes):
            shelf = self._book.empty_shelf(address, size_bytes)
            self._calls["free_address"] += 1
            linux.unreserve(address, size_bytes)
            self._book.remove(shelf)
            MAPPINGS.used(-1)

    def export_fd(self, handle: PhysicalHandle) -> int:
        with self._call("export_fd", size_bytes=handle.size_bytes):
            memory = self._memories.find(handle)
            DESCRIPTORS.ensure(1)
            self._calls["export_fd"] += 1
            descriptor = linux.duplicate(memory.descriptor)
            DESCRIPTORS.used(1)  # whoever closes it does not tell us: the next measurement does
            return descriptor

    def import_fd(self, descriptor: int, size_bytes: int) -> PhysicalHandle:
        with self._call("import_fd", size_bytes=size_bytes):
            self._book.check_size(size_bytes)
            DESCRIPTORS.ensure(1)
            self._calls["import_fd"] += 1
            return self._memories.adopt(descriptor, size_bytes)

    def synchronize(self) -> None:
        """Nothing is asynchronous here."""
        with self._call("synchronize"):
            self._calls["synchronize"] += 1

    def memory_info(self) -> MemoryInfo:
        with self._call("memory_info"):
            self._calls["memory_info"] += 1
            held, total = self._memories.held_bytes(), self._memories.capacity_bytes
            return MemoryInfo(total, max(0, total - held), held)

    def scrub(self, handle: PhysicalHandle) -> None:
        with self._call("scrub", size_bytes=handle.size_bytes):
            memory = self._memories.find(handle)
            self._calls["scrub"] += 1
            linux.write_zeros(memory.descriptor, memory.size_bytes)

    def calls(self) -> Mapping[str, int]:
        with self._lock:
            return dict(self._calls)

    def close(self) -> None:
        with self._lock:
            self._closed = True

    @contextmanager
    def _call(self, name: str, address: int = 0, size_bytes: int = 0) -> Iterator[None]:
        """One call at a time; a broken rule and a failed system call become DriverErrors."""
        with self._lock:
            try:
                if self._closed:
                    raise RuleBroken("the driver is closed")
                yield
            except RuleBroken as broken:
                raise _error(name, errno.EINVAL, address, size_bytes) from broken
            except OSError as failure:
                code = failure.errno or errno.EIO
                limit = _limit_behind(name, code, size_bytes)
                raise limit or _error(name, code, address, size_bytes) from failure


def _limit_behind(call: str, code: int, size_bytes: int) -> LimitReached | None:
    """The limit that the rest of the process used up between our measurement and the call, if it was one."""
    if code in (errno.EMFILE, errno.ENFILE):
        return DESCRIPTORS.refusal(need=1, free=0)
    if (call, code) == ("map", errno.ENOMEM):
        return MAPPINGS.refusal(need=1, free=0)
    if (call, code) == ("reserve", errno.ENOMEM):
        remedy = "raise the address-space limit (ulimit -v) or reserve for fewer tokens"
        return LimitReached(limit="bytes of address", need=size_bytes, free=0, remedy=remedy)
    return None


def _error(call: str, code: int, address: int, size_bytes: int) -> DriverError:
    return DriverError(
        call=call, code=code, name=errno.errorcode.get(code, "?"), address=address, size_bytes=size_bytes
    )
