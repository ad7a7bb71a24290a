"""The host driver against a plain dictionary: what it allows, what memory shows, what the kernel holds."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from kvcluster.driver.host import open_host_driver
from kvcluster.driver.protocol import Access, PhysicalHandle
from kvcluster.errors import DriverError

PAGE = mmap.PAGESIZE
RANGE = 6  # granules of each range
CAPACITY = 12  # granules
offsets = st.integers(0, RANGE)
counts = st.integers(0, RANGE)


class HostModel(RuleBasedStateMachine):
    ranges = Bundle("ranges")
    handles = Bundle("handles")

    def __init__(self) -> None:
        super().__init__()
        self.driver = open_host_driver(granule_bytes=PAGE, capacity_bytes=CAPACITY * PAGE)
        self.reserved: set[int] = set()
        self.alive: set[PhysicalHandle] = set()
        self.mapped: dict[int, PhysicalHandle] = {}  # by address

    @rule(target=ranges)
    def reserve(self) -> int:
        address = self.driver.reserve(RANGE * PAGE)
        self.reserved.add(address)
        return address

    @rule(target=handles, granules=st.integers(1, 3))
    def create(self, granules: int) -> PhysicalHandle:
        with self.allowed(self.charged() + granules <= CAPACITY):
            handle = self.driver.create(granules * PAGE)
            self.alive.add(handle)
            self.mark(handle)
            return handle
        return PhysicalHandle(0, PAGE)

    @rule(start=ranges, offset=offsets, handle=handles)
    def map(self, start: int, offset: int, handle: PhysicalHandle) -> None:
        address = start + offset * PAGE
        vacant = self.inside(address, handle.size_bytes) and not self.occupied(address, handle.size_bytes)
        with self.allowed(handle in self.alive and vacant):
            self.driver.map(address, handle)
            self.mapped[address] = handle

    @rule(start=ranges, offset=offsets, count=counts)
    def unmap(self, start: int, offset: int, count: int) -> None:
        address = start + offset * PAGE
        whole = self.whole(address, count * PAGE)
        with self.allowed(bool(whole)):
            self.driver.unmap(address, count * PAGE)
            for piece in whole:
                del self.mapped[piece]

    @rule(start=ranges, offset=offsets, count=counts)
    def read(self, start: int, offset: int, count: int) -> None:
        address = start + offset * PAGE
        whole = self.whole(address, count * PAGE)
        with self.allowed(bool(whole)):
            self.driver.set_access(address, count * PAGE, Access.READ)
            for piece in whole:
                assert ctypes.c_int64.from_address(piece).value == self.mapped[piece].number

    @rule(handle=handles)
    def release(self, handle: PhysicalHandle) -> None:
        with self.allowed(handle in self.alive):
            self.driver.release(handle)
            self.alive.remove(handle)

    @rule(address=ranges)
    def free(self, address: int) -> None:
        with self.allowed(address in self.reserved and not self.occupied(address, RANGE * PAGE)):
            self.driver.free_address(address, RANGE * PAGE)
            self.reserved.remove(address)

    @invariant()
    def the_kernel_holds_what_the_dictionary_says(self) -> None:
        assert self.driver.memory_info().held_bytes == self.charged() * PAGE

    @invariant()
    def the_kernel_maps_what_the_dictionary_says(self) -> None:
        lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if "/memfd:kvcluster" in line]
        starts = {int(line.split("-")[0], 16) for line in lines}
        assert set(self.mapped) == {start for start in starts if self.inside(start, PAGE)}

    def teardown(self) -> None:
        for address, handle in self.mapped.items():
            self.driver.unmap(address, handle.size_bytes)
        for handle in self.alive:
            self.driver.release(handle)
        for address in self.reserved:
            self.driver.free_address(address, RANGE * PAGE)
        assert self.driver.memory_info().held_bytes == 0
        self.driver.close()

    @contextlib.contextmanager
    def allowed(self, legal: bool) -> Iterator[None]:
        """The block succeeds if it is legal; else it raises DriverError at its driver call."""
        try:
            yield
        except DriverError:
            assert not legal
        else:
            assert legal

    def mark(self, handle: PhysicalHandle) -> None:
        """Write the handle's number into its first bytes."""
        descriptor = self.driver.export_fd(handle)
        os.pwrite(descriptor, handle.number.to_bytes(8, "little"), 0)
        os.close(descriptor)

    def charged(self) -> int:
        return sum(handle.size_bytes for handle in self.alive | set(self.mapped.values())) // PAGE

    def inside(self, address: int, size_bytes: int) -> bool:
        """Whether the range lies in one reservation."""
        return any(
            start <= address and address + size_bytes <= start + RANGE * PAGE and size_bytes > 0
            for start in self.reserved
        )

    def occupied(self, address: int, size_bytes: int) -> bool:
        return any(
            start < address + size_bytes and address < start + handle.size_bytes
            for start, handle in self.mapped.items()
        )

    def whole(self, address: int, size_bytes: int) -> list[int]:
        """Where the whole mappings start that fill the range; nothing, if none do."""
        starts, here = [], address
        while here < address + size_bytes and here in self.mapped:
            starts.append(here)
            here += self.mapped[here].size_bytes
        return starts if here == address + size_bytes and self.inside(address, size_bytes) else []


TestHostModel = HostModel.TestCase
TestHostModel.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
