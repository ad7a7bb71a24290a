"""Pages are entered in the page table before whoever is to write there does, and only where something is mapped."""

from __future__ import annotations

import ctypes
import resource
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from kvcluster.driver.host import HostDriver, open_host_driver
from kvcluster.driver.linux import populate
from kvcluster.driver.population import Population
from kvcluster.driver.protocol import Access, PhysicalHandle
from kvcluster.testing.waiting import eventually
from kvcluster.transaction import Progress
from kvcluster.units import KIB, MIB

GRANULE, GRANULES = 64 * KIB, 4
SIZE = GRANULES * GRANULE
PAGES = SIZE // (4 * KIB)


def has_ended() -> bool:
    return not any(thread.name == "kvcluster-population" for thread in threading.enumerate())


def faults(work: Callable[[], object]) -> int:
    """Minor ones of this thread."""
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    work()
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


@pytest.fixture
def driver() -> Iterator[HostDriver]:
    driver = open_host_driver(capacity_bytes=SIZE, granule_bytes=GRANULE)
    yield driver
    driver.close()


@pytest.fixture
def handles(driver: HostDriver) -> Iterator[list[PhysicalHandle]]:
    handles = [driver.create(GRANULE) for _ in range(GRANULES)]
    yield handles
    for handle in handles:
        driver.release(handle)


@pytest.fixture
def address(driver: HostDriver, handles: list[PhysicalHandle]) -> Iterator[int]:
    """Where they are mapped in a test that maps them."""
    address = driver.reserve(SIZE)
    yield address
    driver.unmap(address, SIZE)
    driver.free_address(address, SIZE)


def test_what_has_become_writable_is_soon_written_without_a_fault(
    driver: HostDriver, handles: list[PhysicalHandle], address: int
) -> None:
    driver.map(address, handles, Progress())
    driver.set_access(address, SIZE, Access.READ_WRITE)
    eventually(has_ended, "the thread does not end")
    assert faults(lambda: ctypes.memset(address, 1, SIZE)) < PAGES // 4


def test_sealed_memory_is_soon_read_without_a_fault(
    driver: HostDriver, handles: list[PhysicalHandle], address: int
) -> None:
    for handle in handles:
        driver.seal(handle)
    driver.map(address, handles, Progress())
    driver.set_access(address, SIZE, Access.READ)
    eventually(has_ended, "the thread does not end")
    buffer = ctypes.create_string_buffer(SIZE)
    for place in (ctypes.addressof(buffer), address):  # the first time is for the buffer's pages, and the interpreter's
        met = faults(partial(ctypes.memmove, buffer, place, SIZE))
    assert met == 0


@pytest.mark.parametrize("writable", [True, False])
def test_nothing_is_entered_that_is_not_accessible(
    driver: HostDriver, handles: list[PhysicalHandle], address: int, writable: bool
) -> None:
    assert not populate(address, SIZE, writable=writable)
    driver.map(address, handles, Progress())
    assert not populate(address, SIZE, writable=writable)
    driver.set_access(address, SIZE, Access.READ)
    assert populate(address, SIZE, writable=writable) is not writable


def test_runs_are_entered_in_their_order_and_in_pieces_until_one_is_of_no_use() -> None:
    entered: list[tuple[int, int]] = []

    def enter(address: int, size_bytes: int) -> bool:
        entered.append((address, size_bytes))
        return address != 7 * MIB

    population = Population(enter, GRANULE)
    population.ask(3 * MIB, 2 * MIB + GRANULE)
    population.ask(7 * MIB, 2 * MIB)  # its first piece is of no use
    eventually(has_ended, "the thread does not end")
    population.ask(10 * MIB, GRANULE)
    eventually(lambda: len(entered) == 5, "a second thread does not begin")
    assert entered[:4] == [(3 * MIB, MIB), (4 * MIB, MIB), (5 * MIB, GRANULE), (7 * MIB, MIB)]
    assert entered[4] == (10 * MIB, GRANULE)
    population.end()


def test_once_it_has_ended_nothing_is_entered_and_no_thread_begins() -> None:
    entered: list[int] = []
    population = Population(lambda address, _: not entered.append(address), GRANULE)
    population.end()
    population.ask(0, GRANULE)
    assert has_ended()
    assert not entered
