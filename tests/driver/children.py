"""What the host driver's tests do in a process of its own: die, run into limits, import.

Run as `python -m tests.driver.children NAME`; prints what it found as one JSON object.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import resource
import socket
import sys
from collections.abc import Callable
from typing import Any

from kvcluster.driver.host import HostDriver, mapping_room, open_host_driver
from kvcluster.driver.limits import LAST_MAPPINGS
from kvcluster.driver.protocol import Access, PhysicalHandle
from kvcluster.errors import DriverError, LimitReached
from kvcluster.transaction import Progress
from kvcluster.units import MIB

PAGE = mmap.PAGESIZE


def _driver() -> HostDriver:
    return open_host_driver(granule_bytes=PAGE, capacity_bytes=64 * MIB)


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd")) - 1


def _until_refused(act: Callable[[int], None]) -> tuple[int, LimitReached]:
    """How often `act` worked, and the refusal that ended it."""
    count = 0
    while True:
        try:
            act(count)
        except LimitReached as refusal:
            return count, refusal
        count += 1


def write_through_a_read_mapping() -> dict[str, Any]:
    driver = _driver()
    address = driver.reserve(PAGE)
    driver.map(address, [driver.create(PAGE)], Progress())
    driver.set_access(address, PAGE, Access.READ)
    print(json.dumps({"read": ctypes.string_at(address, 1)[0]}), flush=True)
    ctypes.memset(address, 1, 1)
    return {}


def touch_without_access() -> dict[str, Any]:
    driver = _driver()
    address = driver.reserve(PAGE)
    driver.map(address, [driver.create(PAGE)], Progress())
    print(json.dumps({}), flush=True)
    ctypes.string_at(address, 1)
    return {}


def use_up_descriptors() -> dict[str, Any]:
    resource.setrlimit(resource.RLIMIT_NOFILE, (290, 320))
    driver = _driver()
    handles: list[PhysicalHandle] = []
    before = _descriptors()
    made, refusal = _until_refused(lambda _: handles.append(driver.create(PAGE)))
    for verb in (lambda: driver.export_fd(handles[0]), lambda: driver.import_fd(0, PAGE)):
        try:
            verb()
        except LimitReached:
            continue
        raise AssertionError("a descriptor beyond the limit")
    driver.release(handles.pop())
    handles.append(driver.create(PAGE))
    return {"made": made, "before": before, "after": _descriptors(), "limit": refusal.limit, "free": refusal.free}


class Crowd:
    """The rest of the process, as far as it uses mappings: one region, split as often as it is told."""

    def __init__(self) -> None:
        self._bytes = 4 * mapping_room(LAST_MAPPINGS) * PAGE
        self._others: list[mmap.mmap] = []
        self._region = mmap.mmap(-1, self._bytes)
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(self._region))
        self._mprotect = ctypes.CDLL(None).mprotect
        self._mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

    def grow(self, *, leave: int) -> None:
        """Until the driver has room for about `leave` more."""
        for index in range((mapping_room(LAST_MAPPINGS) - leave) // 2):
            if self._mprotect(self._start + 2 * index * PAGE, PAGE, mmap.PROT_READ) != 0:
                return

    def fill(self) -> None:
        """Until the kernel gives no more at all; a mapping of its own goes one further than a split."""
        self.grow(leave=-10 * LAST_MAPPINGS)
        with contextlib.suppress(OSError):
            while True:
                self._others.append(mmap.mmap(-1, PAGE))

    def go(self) -> None:
        self._others.clear()
        assert self._mprotect(self._start, self._bytes, mmap.PROT_READ | mmap.PROT_WRITE) == 0


def use_up_mappings() -> dict[str, Any]:
    crowd = Crowd()
    crowd.grow(leave=300)
    driver = _driver()
    address, handle = driver.reserve(4_000 * PAGE), driver.create(PAGE)
    made, refusal = _until_refused(lambda count: driver.map(address + 2 * count * PAGE, [handle], Progress()))
    for count in [*range(0, made, 2), *range(1, made, 2)]:
        driver.unmap(address + 2 * count * PAGE, PAGE)
    driver.free_address(address, 4_000 * PAGE)
    return {"made": made, "limit": refusal.limit, "remedy": refusal.remedy}


def lose_the_last_mappings() -> dict[str, Any]:
    """The rest of the process takes every mapping, the spare ones too, after the driver measured."""
    crowd, driver = Crowd(), _driver()
    address, handle = driver.reserve(400 * PAGE), driver.create(PAGE)
    driver.map(address, [handle], Progress())
    crowd.fill()
    made, refusal = _until_refused(lambda count: driver.map(address + 2 * (count + 1) * PAGE, [handle], Progress()))
    failure = _failure_of(lambda: driver.unmap(address, PAGE))
    crowd.go()
    driver.map(address + 2 * (made + 1) * PAGE, [handle], Progress())  # what was refused left no trace
    for count in range(made + 2):
        driver.unmap(address + 2 * count * PAGE, PAGE)
    driver.free_address(address, 400 * PAGE)
    return {"limit": refusal.limit, "free": refusal.free, "call": failure.call, "name": failure.name}


def _failure_of(act: Callable[[], None]) -> DriverError:
    try:
        act()
    except DriverError as failure:
        return failure
    raise AssertionError("it did not fail")


def lose_the_last_descriptors() -> dict[str, Any]:
    """The rest of the process takes every descriptor, the spare ones too, after the driver measured."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, 400))
    driver = _driver()
    driver.create(PAGE)
    taken = []
    try:
        while True:
            taken.append(os.dup(1))
    except OSError:
        pass
    try:
        driver.create(PAGE)
    except LimitReached as refusal:
        error = refusal
    held = driver.memory_info().held_bytes
    os.close(taken.pop())
    driver.create(PAGE)
    return {"limit": error.limit, "free": error.free, "held": held}


def run_into_a_file_size_limit() -> dict[str, Any]:
    driver = _driver()
    resource.setrlimit(resource.RLIMIT_FSIZE, (PAGE, PAGE))
    before = _descriptors()
    error = _failure_of(lambda: print(driver.create(2 * PAGE)))
    left, held = _descriptors() - before, driver.memory_info().held_bytes
    driver.create(PAGE)
    return {"call": error.call, "name": error.name, "left": left, "held": held}


def run_out_of_address() -> dict[str, Any]:
    driver = _driver()
    resource.setrlimit(resource.RLIMIT_AS, (1 << 32, 1 << 32))
    try:
        driver.reserve(1 << 40)
    except LimitReached as refusal:
        error = refusal
    driver.reserve(PAGE)
    return {"limit": error.limit, "need": error.need}


def import_and_answer() -> dict[str, Any]:
    """Import what comes over the socket that the command line names; read it, and write into it."""
    driver = _driver()
    with socket.socket(fileno=int(sys.argv[2])) as peer:
        message, descriptors, _, _ = socket.recv_fds(peer, 100, 1)
        handle = driver.import_fd(descriptors[0], int(message))
        os.close(descriptors[0])
        address = driver.reserve(handle.size_bytes)
        driver.map(address, [handle], Progress())
        driver.set_access(address, handle.size_bytes, Access.READ_WRITE)
        peer.sendall(b"mapped")
        peer.recv(1)  # the exporter has given everything up
        found = ctypes.string_at(address, 8).decode()
        ctypes.memmove(address + PAGE, b"answered", 8)
    return {"found": found, "held": driver.memory_info().held_bytes, "calls": dict(driver.calls())}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()), flush=True)
