"""Memory in a second process: a store that it may not make, and an exporter that it outlives."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.gpu_check.children import Child, started
from benchmarks.gpu_check.setting import Broken, Found, Setting, Skipped
from kvcluster.driver.cuda import open_cuda_driver
from kvcluster.driver.protocol import Access, Driver, PhysicalHandle
from kvcluster.testing.driver_contract import ChildDriver
from kvcluster.testing.driver_contract.bench import peek, poke
from kvcluster.transaction import Progress

WORD = b"bequeathed"


def check_read_only(setting: Setting) -> Found:
    """A store through a READ mapping, by a kernel (by the CPU, where it reaches the memory), in a child process.

    Raises:
        Broken: the store went through, or the exporter's memory or context suffered from it.
    """
    driver = open_cuda_driver(setting.device)
    handle = driver.create(driver.granularity_bytes)
    address = _mapped(driver, handle, Access.READ_WRITE)
    poke(driver, address, WORD)
    with _exported(driver, handle) as descriptor:
        found = _stored(setting, handle.size_bytes, descriptor)
    if peek(driver, address, len(WORD)) != WORD:
        raise Broken("a store through a READ mapping went through", found)
    driver.synchronize()
    driver.release(driver.create(handle.size_bytes))
    if found["wait"] == "SUCCESS (0)":
        raise Broken("a store through a READ mapping was dropped and nobody was told", found)
    return Found(f"the writer's context: {found['wait']}; the exporter's goes on", found)


def _stored(setting: Setting, size_bytes: int, descriptor: int) -> dict[str, Any]:
    with started("store_into_read_only", setting.ordinal, size_bytes, descriptors=[descriptor]) as child:
        if child.says() != int.from_bytes(WORD[:8], "little"):
            raise Broken("a READ mapping does not show what was written")
        try:
            return dict(child.says())
        except Broken:  # no kernel there: the CPU made the store, and that ends the process
            if (ended := child.ended()) != signal.Signals.SIGSEGV.name:
                raise
            return {"wait": ended}
        except Skipped as reason:
            raise Broken("the CPU's store through a READ mapping went through") from reason


def check_outliving(setting: Setting) -> Found:
    """Import, kill the exporter, look, export again, and let a third process import that.

    Raises:
        Broken: the memory did not outlive its exporter, or was not the same in the third process.
        DriverError: it cannot be exported again.
    """
    driver = open_cuda_driver(setting.device)
    with _imported(driver, setting) as (handle, exporter):
        address = _mapped(driver, handle, Access.READ_WRITE)
        exporter.process.kill()
        ended = exporter.ended()
    if peek(driver, address, len(WORD)) != WORD:
        raise Broken("the memory of a killed exporter has other bytes")
    third = ChildDriver("kvcluster.driver.cuda:open_cuda_driver", {"device": setting.device})
    told = third.act("store through both", driver, handle)  # exports again, what was imported
    if not told.was_stopped or peek(driver, address, 8) != b"by child":
        raise Broken(f"a third process does not share memory that was exported again: {told}")
    sentence = f"the importer reads on after its exporter's {ended}; exported again, a third process shares it"
    return Found(sentence, {"exporter": ended, "exported again": True})


@contextmanager
def _imported(driver: Driver, setting: Setting) -> Iterator[tuple[PhysicalHandle, Child]]:
    """A handle on a child's memory, while the child lives."""
    ours, theirs = socket.socketpair()
    size_bytes = driver.granularity_bytes
    with ours, theirs, started("bequeath", setting.ordinal, size_bytes, descriptors=[theirs.fileno()]) as child:
        theirs.close()
        _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
        if not descriptors:
            raise Broken(f"the exporter ended before it exported ({child.ended()})")
        try:
            handle = driver.import_fd(descriptors[0], size_bytes)
        finally:
            os.close(descriptors[0])
        yield handle, child


@contextmanager
def _exported(driver: Driver, handle: PhysicalHandle) -> Iterator[int]:
    descriptor = driver.export_fd(handle)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _mapped(driver: Driver, handle: PhysicalHandle, access: Access) -> int:
    address = driver.reserve(handle.size_bytes)
    driver.map(address, [handle], Progress())
    driver.set_access(address, handle.size_bytes, access)
    return address
