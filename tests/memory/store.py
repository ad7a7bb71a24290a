"""A pool over a driver that fails on demand, and what its tests look at: counts, and the bytes themselves."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from kvcluster.memory.handle import Handle, HandleState
from kvcluster.memory.pool import HandlePool
from kvcluster.testing.faulty_driver import FaultyDriver, never
from kvcluster.testing.tidy_driver import TidyDriver

GRANULE = 4096
BULK = 4 * GRANULE
CAPACITY = 16


class Store:
    """A device of sixteen granules with bulk handles of four; the pool keeps at most `limit` granules."""

    def __init__(self, limit: int = 3) -> None:
        self.tidy = TidyDriver(granule_bytes=GRANULE, capacity_bytes=64 * GRANULE)  # the bound is the pool's own
        self.driver = FaultyDriver(self.tidy)
        self.pool = HandlePool(
            self.driver,
            granule_bytes=GRANULE,
            bulk_bytes=BULK,
            capacity_bytes=CAPACITY * GRANULE,
            limit_bytes=limit * GRANULE + 100,
        )

    def take(self, count: int, tenant: str = "a") -> list[Handle]:
        return self.pool.take([GRANULE] * count, tenant=tenant)

    def counts(self) -> tuple[int, int, int]:
        """Granules pooled, out, quarantined; everything is counted twice, and the driver holds exactly those."""
        for state in HandleState:
            assert self.pool.counted_bytes(state) == self.pool.bytes_in(state)
        pooled, out, shared, quarantined = (
            self.pool.bytes_in(state) // GRANULE
            for state in (HandleState.POOLED, HandleState.OUT, HandleState.SHARED, HandleState.QUARANTINED)
        )
        assert self.pool.pooled_bytes == pooled * GRANULE
        assert self.pool.created_bytes == (pooled + out + shared + quarantined) * GRANULE
        assert self.pool.created_bytes <= self.pool.capacity_bytes
        assert self.driver.memory_info().held_bytes == self.pool.created_bytes
        return pooled, out + shared, quarantined

    def made(self) -> int:
        """Creates that reached the driver."""
        return self.driver.calls().get("create", 0)

    @contextmanager
    def descriptor(self, handle: Handle) -> Iterator[int]:
        fd = self.tidy.export_fd(handle.physical)
        try:
            yield fd
        finally:
            os.close(fd)

    def write(self, handle: Handle, byte: bytes) -> None:
        """Fill its memory with this byte."""
        with self.descriptor(handle) as fd:
            os.pwrite(fd, byte * handle.size_bytes, 0)

    def read(self, handle: Handle) -> set[int]:
        """The bytes that occur in its memory."""
        with self.descriptor(handle) as fd:
            return set(os.pread(fd, handle.size_bytes, 0))

    def clear(self) -> None:
        self.driver.follow(never())
        self.tidy.clear()
