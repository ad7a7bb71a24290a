"""What other processes do with memory that is sealed: read it, write it and die, try everything, stand in the way.

Run as `python -m tests.driver.seal_children NAME SOCKET`. Each is sent the size and a descriptor of the memory, says
what it found as one JSON line, and acts on when the socket says so.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import socket
import sys
from collections.abc import Callable

from kvcluster.driver.host import HostDriver, open_host_driver
from kvcluster.driver.protocol import Access, PhysicalHandle
from kvcluster.errors import DriverError
from kvcluster.transaction import Progress

PAGE = mmap.PAGESIZE


class Peer:
    """The other end: it sends memory, is told what was found, and says when to go on."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)

    def memory(self) -> tuple[int, int]:
        """A descriptor and the size of what it leads to."""
        message, descriptors, _, _ = socket.recv_fds(self._socket, 100, 1)
        return descriptors[0], int(message)

    def say(self, found: object) -> None:
        self._socket.sendall(json.dumps(found).encode() + b"\n")

    def go_on(self) -> None:
        self._socket.recv(1)


def _mapped(descriptor: int, size_bytes: int, access: Access) -> tuple[HostDriver, PhysicalHandle, int]:
    driver = open_host_driver(granule_bytes=PAGE, capacity_bytes=0)
    handle, address = driver.import_fd(descriptor, size_bytes), driver.reserve(size_bytes)
    driver.map(address, [handle], Progress())
    driver.set_access(address, size_bytes, access)
    return driver, handle, address


def read(peer: Peer) -> None:
    """As a joiner does, for as long as it is wanted."""
    _, _, address = _mapped(*peer.memory(), Access.READ)
    peer.say(ctypes.string_at(address, 6).decode())
    peer.go_on()
    peer.say(ctypes.string_at(address, 6).decode())


def read_and_write(peer: Peer) -> None:
    """As a joiner must not."""
    _, _, address = _mapped(*peer.memory(), Access.READ)
    peer.say(ctypes.string_at(address, 6).decode())
    ctypes.memset(address, 1, 1)
    peer.say("alive")


def own_and_write(peer: Peer) -> None:
    """As the former owner must not: it had written, gave its mapping up to be sealed, and has it back for reading."""
    descriptor, size_bytes = peer.memory()
    driver, _, address = _mapped(descriptor, size_bytes, Access.READ_WRITE)
    ctypes.memmove(address, b"sealed", 6)
    driver.unmap(address, size_bytes)
    peer.say("unmapped")
    driver.map(address, [driver.import_fd(*peer.memory())], Progress())
    driver.set_access(address, size_bytes, Access.READ)
    peer.say(ctypes.string_at(address, 6).decode())
    ctypes.memset(address, 1, 1)
    peer.say("alive")


def stand_in_the_way(peer: Peer) -> None:
    """Has it mapped by way of a writable descriptor, though for reading."""
    driver, handle, address = _mapped(*peer.memory(), Access.READ)
    peer.say("mapped")
    peer.go_on()
    driver.unmap(address, handle.size_bytes)
    peer.say("unmapped")


def try_everything(peer: Peer) -> None:
    """With both descriptors: the one from before the seal, and the one of sealed memory."""
    old, size_bytes = peer.memory()
    before = open_host_driver(granule_bytes=PAGE, capacity_bytes=0)
    stale = before.import_fd(old, size_bytes)
    peer.say("imported")
    new, _ = peer.memory()
    found = {}
    for name, descriptor in (("old", old), ("new", new), ("reopened", os.open(f"/proc/self/fd/{new}", os.O_RDWR))):
        found[name] = _attempts(descriptor, size_bytes)
    peer.say(found | {"driver": _write_of(before, stale)})


def _attempts(descriptor: int, size_bytes: int) -> list[str]:
    attempts: dict[str, Callable[[], object]] = {
        "write": lambda: os.pwrite(descriptor, b"x", 0),
        "shrink": lambda: os.ftruncate(descriptor, 0),
        "grow": lambda: os.ftruncate(descriptor, 2 * size_bytes),
        "map": lambda: mmap.mmap(descriptor, size_bytes).close(),
    }
    return [name for name, attempt in attempts.items() if _works(attempt)]


def _works(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except OSError:
        return False
    return True


def _write_of(driver: HostDriver, handle: PhysicalHandle) -> str:
    """Where a driver that does not know of the seal fails to make it writable."""
    address = driver.reserve(handle.size_bytes)
    try:
        driver.map(address, [handle], Progress())
        driver.set_access(address, handle.size_bytes, Access.READ_WRITE)
    except DriverError as failure:
        return failure.call
    return "nowhere"


if __name__ == "__main__":
    globals()[sys.argv[1]](Peer(int(sys.argv[2])))
