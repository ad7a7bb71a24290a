"""The other process of the contract's tests: what `child.ChildDriver` starts."""

from __future__ import annotations

import importlib
import json
import signal
import socket
import sys
from collections.abc import Callable

from kvcluster.driver.protocol import Access, Driver, PhysicalHandle
from kvcluster.errors import DriverError
from kvcluster.testing.driver_contract.bench import peek, poke
from kvcluster.testing.driver_contract.child import LENGTH, REFUSED
from kvcluster.transaction import Progress


def _main(opener: str, arguments: dict[str, object], act: str, size_bytes: int, number: int) -> None:
    module, _, name = opener.partition(":")
    driver: Driver = getattr(importlib.import_module(module), name)(**arguments)
    with socket.socket(fileno=number) as peer:
        if act == "bequeath":
            _bequeath(driver, size_bytes, peer)
            return
        _, descriptors, _, _ = socket.recv_fds(peer, 1, 1)
        handle = driver.import_fd(descriptors[0], size_bytes)
        try:
            _ACTS[act](driver, handle, peer)
        except DriverError as refusal:
            if refusal.call not in ("peek", "poke"):
                raise
            sys.exit(REFUSED)


def _mapped(driver: Driver, handle: PhysicalHandle, access: Access) -> int:
    address = driver.reserve(handle.size_bytes)
    driver.map(address, [handle], Progress())
    driver.set_access(address, handle.size_bytes, access)
    return address


def _store_through_a_read_mapping(driver: Driver, handle: PhysicalHandle, peer: socket.socket) -> None:
    address = _mapped(driver, handle, Access.READ)
    peer.sendall(peek(driver, address, LENGTH))
    poke(driver, address, b"overwritten")


def _store_through_both(driver: Driver, handle: PhysicalHandle, peer: socket.socket) -> None:
    written, read = _mapped(driver, handle, Access.READ_WRITE), _mapped(driver, handle, Access.READ)
    poke(driver, written, b"by child")
    peer.sendall(peek(driver, read, LENGTH))
    poke(driver, read, b"overwritten")


def _look_without_access(driver: Driver, handle: PhysicalHandle, peer: socket.socket) -> None:
    address = driver.reserve(handle.size_bytes)
    driver.map(address, [handle], Progress())
    peer.sendall(peek(driver, address, LENGTH))


def _bequeath(driver: Driver, size_bytes: int, peer: socket.socket) -> None:
    """Create memory, send it away, and wait to be killed."""
    handle = driver.create(size_bytes)
    poke(driver, _mapped(driver, handle, Access.READ_WRITE), peer.recv(64))
    driver.synchronize()
    socket.send_fds(peer, [b"."], [driver.export_fd(handle)])
    signal.pause()


_ACTS: dict[str, Callable[[Driver, PhysicalHandle, socket.socket], None]] = {
    "store through a read mapping": _store_through_a_read_mapping,
    "store through both": _store_through_both,
    "look without access": _look_without_access,
}


if __name__ == "__main__":
    _main(*json.loads(sys.argv[1]))
