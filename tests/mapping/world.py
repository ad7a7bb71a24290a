"""An address range on a host driver that can be made to fail, and what the kernel says of it."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvcluster.driver.host import open_host_driver
from kvcluster.driver.protocol import PhysicalHandle
from kvcluster.errors import DriverError
from kvcluster.geometry.residency import GroupShape, Keeps, RangeMap, Shape
from kvcluster.ids import WindowRun
from kvcluster.mapping.address_range import RangeState, open_range
from kvcluster.testing.faulty_driver import Call, FaultyDriver, never
from kvcluster.units import MIB

PAGE = mmap.PAGESIZE
SHAPE = Shape((GroupShape(fragments=2, stride_bytes=1_000), GroupShape(fragments=1, stride_bytes=300)), PAGE)
RANGE_MAP = RangeMap(SHAPE, max_tokens=40)  # 10, 10 and 3 windows
RINGS = RangeMap(
    Shape(
        (
            GroupShape(1, 1_000),
            GroupShape(2, 300, Keeps.RING, windows=4),
            GroupShape(2, 300, Keeps.SNAPSHOT, windows=3),
        ),
        PAGE,
    ),
    max_tokens=100,  # two laps of a ring of 54 tokens
)


@dataclass(frozen=True, slots=True)
class Picture:
    """`kernel` holds the address and the permissions of each window that the kernel maps in the range."""

    state: RangeState
    mapped: tuple[WindowRun, ...]
    kernel: tuple[tuple[int, str], ...]
    held_bytes: int


class World:
    def __init__(self, range_map: RangeMap = RANGE_MAP) -> None:
        self.host = open_host_driver(granule_bytes=PAGE, capacity_bytes=4 * MIB)
        self.driver = FaultyDriver(self.host)
        self.range = open_range(self.driver, range_map)
        self._handles: list[PhysicalHandle] = []

    def handles(self, *granules: int) -> list[PhysicalHandle]:
        """New handles of so many granules each."""
        made = [self.driver.create(count * PAGE) for count in granules]
        self._handles += made
        return made

    def mapped(self, *runs: WindowRun) -> None:
        """Map the runs, one granule a handle."""
        self.range.map_runs(runs, self.handles(*[1] * sum(run.count for run in runs)))

    def picture(self) -> Picture:
        held = self.driver.memory_info().held_bytes
        return Picture(self.range.state, self.range.mapped_runs(), self._kernel(), held)

    def recorded(self) -> set[int]:
        """The address of every window that the range records as mapped."""
        return {address for run in self.range.mapped_runs() for address in self.windows(run)}

    def windows(self, run: WindowRun) -> list[int]:
        """The first address of each window."""
        first = self.range.address + self.range.range_map.run_offset_bytes(run)
        return [first + index * PAGE for index in range(run.count)]

    def copies(self, run: WindowRun) -> list[int]:
        """The second address of each window, where the run is of a ring that goes on."""
        range_map = self.range.range_map
        way = range_map.ring_bytes(run.group)
        return [address + way for address in self.windows(run)] if range_map.copies(run.group) > 1 else []

    def calls(self) -> list[Call]:
        return list(self.driver.since_plan())

    def kernel_mappings(self) -> int:
        """The kernel's mappings, of memory and of nothing, that lie in the range."""
        end, count = self.range.address + self.range.range_map.size_bytes, 0
        for line in Path("/proc/self/maps").read_text().splitlines():
            first, last = (int(edge, 16) for edge in line.split(maxsplit=1)[0].split("-"))
            count += first < end and last > self.range.address
        return count

    def _kernel(self) -> tuple[tuple[int, str], ...]:
        found = []
        for line in Path("/proc/self/maps").read_text().splitlines():
            span, permissions = line.split()[:2]
            start, end = (int(edge, 16) for edge in span.split("-"))
            if "/memfd:kvcluster" in line and self._holds(start):
                found += [(address, permissions) for address in range(start, end, PAGE)]
        return tuple(found)

    def _holds(self, address: int) -> bool:
        return self.range.address <= address < self.range.address + self.range.range_map.size_bytes

    def clear(self) -> None:
        """Give everything back to the kernel, whatever state the range is in."""
        self.driver.follow(never())
        for first, end in _stretches([address for address, _ in self._kernel()]):
            self.driver.unmap(first, end - first)
        for handle in self._handles:
            self.driver.release(handle)
        with contextlib.suppress(DriverError):  # a closed range gave it back
            self.driver.free_address(self.range.address, self.range.range_map.size_bytes)
        assert self.driver.memory_info().held_bytes == 0
        self.driver.close()


@contextlib.contextmanager
def new_world(range_map: RangeMap = RANGE_MAP) -> Iterator[World]:
    world = World(range_map)
    yield world
    world.clear()


def _stretches(pages: Sequence[int]) -> list[tuple[int, int]]:
    """Adjacent pages, ascending, as [first, end)."""
    found: list[tuple[int, int]] = []
    for page in pages:
        joined = bool(found) and found[-1][1] == page
        found.append((found.pop()[0] if joined else page, page + PAGE))
    return found


def bytes_of(runs: Sequence[WindowRun]) -> int:
    return sum(run.count for run in runs) * PAGE
