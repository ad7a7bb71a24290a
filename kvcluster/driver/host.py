"""The host device: one memfd a handle, mapped into reserved address by mmap. Needs Linux, and no GPU.

Obeys the rules of CUDA's virtual memory exactly, so that what runs here runs there: every violation is a
DriverError (EINVAL, its cause says which rule) before any system call. Pages are allocated at create; capacity is
enforced there too. 2 MiB: create 478 us, map 4, access 1, unmap 3; first touch costs more than all of them.

A process that only imports uses the same class: imported handles are not charged to the capacity.

"No CUDA after fork" holds here too: a forked child has none of the mappings (`driver.linux`), so that an access
there is a SIGSEGV of its own, and the driver that it inherited refuses every call; one that it opens itself works.
"""

from __future__ import annotations

import errno
import inspect
import mmap
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

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


_process = object()  # this one, from its fork on


def _forked() -> None:
    global _process
    _process = object()


os.register_at_fork(after_in_child=_forked)

P = ParamSpec("P")
R = TypeVar("R")


def _strict(call: Callable[Concatenate[HostDriver, P], R]) -> Callable[Concatenate[HostDriver, P], R]:
    """One call at a time, by its own process; a broken rule and a failed system call become DriverErrors."""
    parameters = inspect.signature(call)

    @wraps(call)
    def strict(driver: HostDriver, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            if driver._process is not _process:
                raise RuleBroken("the process was forked after the driver was opened: open a new one in the child")
            with driver._lock:
                if driver._closed:
                    raise RuleBroken("the driver is closed")
                return call(driver, *args, **kwargs)
        except (RuleBroken, OSError) as failure:
            asked = parameters.bind(driver, *args, **kwargs).arguments
            raise _as_ours(failure, call.__name__, asked) from failure

    return strict


class HostDriver:
    """`kvcluster.driver.protocol.Driver` over memfd and mmap. Safe to call from several threads."""

    def __init__(self, *, granule_bytes: int, capacity_bytes: int) -> None:
        self._book = AddressBook(granule_bytes)
        self._memories = Memories(capacity_bytes)
        self._calls: defaultdict[str, int] = defaultdict(int)
        self._lock = threading.Lock()
        self._process = _process
        self._closed = False

    @property
    def granularity_bytes(self) -> int:
        return self._book.granule_bytes

    @_strict
    def reserve(self, size_bytes: int) -> int:
        self._book.check_size(size_bytes)
        MAPPINGS.ensure(1)
        self._calls["reserve"] += 1
        address = linux.reserve(size_bytes, self.granularity_bytes)
        self._book.add(Shelf(address, size_bytes))
        MAPPINGS.used(1)
        return address

    @_strict
    def create(self, size_bytes: int) -> PhysicalHandle:
        self._book.check_size(size_bytes)
        self._memories.check_room(size_bytes)
        DESCRIPTORS.ensure(1)
        self._calls["create"] += 1
        return self._memories.create(size_bytes)

    @_strict
    def map(self, address: int, handle: PhysicalHandle) -> None:
        memory, size_bytes = self._memories.find(handle), handle.size_bytes
        shelf = self._book.shelf_at(address, size_bytes)
        place = shelf.vacancy(address, size_bytes)
        MAPPINGS.ensure(2)  # a piece in the middle of a gap makes two more
        self._calls["map"] += 1
        linux.map_file(address, size_bytes, memory.descriptor)
        MAPPINGS.used(shelf.occupy(place, Piece(address, size_bytes, handle.number)))
        memory.mappings += 1

    @_strict
    def set_access(self, address: int, size_bytes: int, access: Access) -> None:
        self._book.shelf_at(address, size_bytes).filled(address, size_bytes)
        self._calls["set_access"] += 1
        linux.protect(address, size_bytes, linux.PROT_READ if access is Access.READ else linux.PROT_READ_WRITE)

    @_strict
    def unmap(self, address: int, size_bytes: int) -> None:
        shelf = self._book.shelf_at(address, size_bytes)
        pieces = shelf.filled(address, size_bytes)
        self._calls["unmap"] += 1
        linux.unmap_file(address, size_bytes)
        MAPPINGS.used(shelf.vacate(pieces))
        self._memories.unmapped(pieces)

    @_strict
    def release(self, handle: PhysicalHandle) -> None:
        self._memories.find(handle)
        self._calls["release"] += 1
        self._memories.release(handle.number)

    @_strict
    def free_address(self, address: int, size_bytes: int) -> None:
        shelf = self._book.empty_shelf(address, size_bytes)
        self._calls["free_address"] += 1
        linux.unreserve(address, size_bytes)
        self._book.remove(shelf)
        MAPPINGS.used(-1)

    @_strict
    def export_fd(self, handle: PhysicalHandle) -> int:
        memory = self._memories.find(handle)
        DESCRIPTORS.ensure(1)
        self._calls["export_fd"] += 1
        descriptor = linux.duplicate(memory.descriptor)
        DESCRIPTORS.used(1)  # whoever closes it does not tell us: the next measurement does
        return descriptor

    @_strict
    def import_fd(self, descriptor: int, size_bytes: int) -> PhysicalHandle:
        self._book.check_size(size_bytes)
        DESCRIPTORS.ensure(1)
        self._calls["import_fd"] += 1
        return self._memories.adopt(descriptor, size_bytes)

    @_strict
    def synchronize(self) -> None:
        """Nothing is asynchronous here."""
        self._calls["synchronize"] += 1

    @_strict
    def memory_info(self) -> MemoryInfo:
        self._calls["memory_info"] += 1
        held, total = self._memories.held_bytes(), self._memories.capacity_bytes
        return MemoryInfo(total, max(0, total - held), held)

    @_strict
    def scrub(self, handle: PhysicalHandle) -> None:
        memory = self._memories.find(handle)
        self._calls["scrub"] += 1
        linux.write_zeros(memory.descriptor, memory.size_bytes)

    def calls(self) -> Mapping[str, int]:
        with self._lock:
            return dict(self._calls)

    def close(self) -> None:
        with self._lock:
            self._closed = True


def _as_ours(failure: RuleBroken | OSError, call: str, asked: Mapping[str, Any]) -> LimitReached | DriverError:
    address: int = asked.get("address", 0)
    size_bytes: int = asked["handle"].size_bytes if "handle" in asked else asked.get("size_bytes", 0)
    if isinstance(failure, RuleBroken):
        return _error(call, errno.EINVAL, address, size_bytes)
    code = failure.errno or errno.EIO
    return _limit_behind(call, code, size_bytes) or _error(call, code, address, size_bytes)


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
