"""Memory with a content, handed over, and read again: for tests of sealed memory."""

from __future__ import annotations

import ctypes
import mmap
import os

from kvcluster.driver.protocol import Access, PhysicalHandle
from kvcluster.testing.tidy_driver import TidyDriver
from kvcluster.transaction import Progress

PAGE = mmap.PAGESIZE
SIZE = 2 * PAGE


def written(driver: TidyDriver, content: bytes = b"sealed") -> PhysicalHandle:
    """New memory with this content, mapped nowhere."""
    handle, address = driver.create(SIZE), driver.reserve(SIZE)
    driver.map(address, [handle], Progress())
    driver.set_access(address, SIZE, Access.READ_WRITE)
    ctypes.memmove(address, content, len(content))
    driver.unmap(address, SIZE)
    return handle


def shared(driver: TidyDriver, handle: PhysicalHandle, to: TidyDriver) -> PhysicalHandle:
    descriptor = driver.export_fd(handle)
    try:
        return to.import_fd(descriptor, SIZE)
    finally:
        os.close(descriptor)


def read_back(driver: TidyDriver, handle: PhysicalHandle) -> bytes:
    address = driver.reserve(SIZE)
    driver.map(address, [handle], Progress())
    driver.set_access(address, SIZE, Access.READ)
    return ctypes.string_at(address, 6)
