"""Any driver against a plain dictionary: what it allows, what memory shows, what is held and what is mapped.

A state machine for hypothesis; a backend's test gives it a driver with 12 granules of memory. What the kernel maps is
compared too, because both backends keep their memory in files named after us.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from kvcluster.driver.protocol import Access, Driver, PhysicalHandle
from kvcluster.errors import DriverError
from kvcluster.transaction import Progress

RANGE = 6  # granules of each range
CAPACITY = 12  # granules
offsets = st.integers(0, RANGE)
counts = st.integers(0, RANGE)


class DriverModel(RuleBasedStateMachine):
    opened: ClassVar[Callable[[], AbstractContextManager[Driver]]]
    """A driver for the length of a block."""

    ranges = Bundle("ranges")
    handles = Bundle("handles")

    def __init__(self) -> None:
        super().__init__()
        self.end = contextlib.ExitStack()
        self.driver = self.end.enter_context(type(self).opened())
        self.granule = self.driver.granularity_bytes
        self.reserved: set[int] = set()
        self.alive: set[PhysicalHandle] = set()
        self.sealed: set[PhysicalHandle] = set()
        self.mapped: dict[int, PhysicalHandle] = {}  # by address

    @rule(target=ranges)
    def reserve(self) -> int:
        address = self.driver.reserve(RANGE * self.granule)
        self.reserved.add(address)
        return address

    @rule(target=handles, granules=st.integers(1, 3))
    def create(self, granules: int) -> PhysicalHandle:
        with self.allowed(self.charged() + granules <= CAPACITY):
            handle = self.driver.create(granules * self.granule)
            self.alive.add(handle)
            self.mark(handle)
            return handle
        return PhysicalHandle(0, self.granule)

    @rule(start=ranges, offset=offsets, handle=handles)
    def map(self, start: int, offset: int, handle: PhysicalHandle) -> None:
        address = start + offset * self.granule
        vacant = self.inside(address, handle.size_bytes) and not self.occupied(address, handle.size_bytes)
        with self.allowed(handle in self.alive and vacant):
            self.driver.map(address, [handle], Progress())
            self.mapped[address] = handle

    @rule(start=ranges, offset=offsets, count=counts)
    def unmap(self, start: int, offset: int, count: int) -> None:
        address = start + offset * self.granule
        whole = self.whole(address, count * self.granule)
        with self.allowed(bool(whole)):
            self.driver.unmap(address, count * self.granule)
            for piece in whole:
                del self.mapped[piece]

    @rule(start=ranges, offset=offsets, count=counts)
    def read(self, start: int, offset: int, count: int) -> None:
        address = start + offset * self.granule
        whole = self.whole(address, count * self.granule)
        with self.allowed(bool(whole)):
            self.driver.set_access(address, count * self.granule, Access.READ)
            for piece in whole:
                assert ctypes.c_int64.from_address(piece).value == self.mapped[piece].number

    @rule(start=ranges, offset=offsets, count=counts)
    def write(self, start: int, offset: int, count: int) -> None:
        """What it writes is what stood there."""
        address = start + offset * self.granule
        whole = self.whole(address, count * self.granule)
        with self.allowed(bool(whole) and not any(self.mapped[piece] in self.sealed for piece in whole)):
            self.driver.set_access(address, count * self.granule, Access.READ_WRITE)
            for piece in whole:
                ctypes.c_int64.from_address(piece).value = self.mapped[piece].number

    @rule(handle=handles)
    def seal(self, handle: PhysicalHandle) -> None:
        with self.allowed(handle in self.alive and (handle in self.sealed or handle not in self.mapped.values())):
            self.driver.seal(handle)
            self.sealed.add(handle)

    @rule(handle=handles)
    def scrub(self, handle: PhysicalHandle) -> None:
        with self.allowed(handle in self.alive - self.sealed):
            self.driver.scrub(handle)
            self.mark(handle)

    @rule(handle=handles)
    def release(self, handle: PhysicalHandle) -> None:
        with self.allowed(handle in self.alive):
            self.driver.release(handle)
            self.alive.remove(handle)

    @rule(address=ranges)
    def free(self, address: int) -> None:
        with self.allowed(address in self.reserved and not self.occupied(address, RANGE * self.granule)):
            self.driver.free_address(address, RANGE * self.granule)
            self.reserved.remove(address)

    @invariant()
    def as_much_is_held_as_the_dictionary_says(self) -> None:
        assert self.driver.memory_info().held_bytes == self.charged() * self.granule

    @invariant()
    def the_kernel_maps_what_the_dictionary_says(self) -> None:
        lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if "/memfd:kvcluster" in line]
        starts = {int(line.split("-")[0], 16) for line in lines}
        assert set(self.mapped) == {start for start in starts if self.inside(start, self.granule)}

    def teardown(self) -> None:
        with self.end:
            for address, handle in self.mapped.items():
                self.driver.unmap(address, handle.size_bytes)
            for handle in self.alive:
                self.driver.release(handle)
            for address in self.reserved:
                self.driver.free_address(address, RANGE * self.granule)
            assert self.driver.memory_info().held_bytes == 0

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
        return sum(handle.size_bytes for handle in self.alive | set(self.mapped.values())) // self.granule

    def inside(self, address: int, size_bytes: int) -> bool:
        """Whether the range lies in one reservation."""
        return any(
            start <= address and address + size_bytes <= start + RANGE * self.granule and size_bytes > 0
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
