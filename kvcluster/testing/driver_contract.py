"""The rules that every driver obeys, as tests that a backend's own test class inherits.

    @pytest.fixture
    def open_driver() -> Callable[[], Driver]: ...      # a new driver with room for 64 granules

    class TestHostDriver(DriverContract): ...

A backend whose memory the CPU does not reach overrides `peek` and `poke`. Every refusal is checked to be one that
never reached the hardware (`calls()` stands still) and that changed nothing (the same call, made right, works).
"""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import pytest

from kvcluster.driver.protocol import Access, Driver, PhysicalHandle
from kvcluster.errors import DriverError


def forked(act: Callable[[], None]) -> int:
    """What `waitpid` says of a forked child that does `act` and ends; an error of `act` is its status 1."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn where there are threads
        child = os.fork()
    if child == 0:
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        status = 1
        try:
            act()
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1]


@dataclass(slots=True)
class Bench:
    """A driver, and what a test left open on it."""

    driver: Driver
    _ranges: list[tuple[int, int]] = field(default_factory=list)
    _mapped: list[tuple[int, int]] = field(default_factory=list)
    _handles: list[PhysicalHandle] = field(default_factory=list)

    @property
    def granule(self) -> int:
        return self.driver.granularity_bytes

    def reserve(self, granules: int) -> int:
        address = self.driver.reserve(granules * self.granule)
        self._ranges.append((address, granules * self.granule))
        return address

    def create(self, granules: int = 1) -> PhysicalHandle:
        self._handles.append(self.driver.create(granules * self.granule))
        return self._handles[-1]

    def import_from(self, other: Bench, handle: PhysicalHandle) -> PhysicalHandle:
        descriptor = other.driver.export_fd(handle)
        try:
            self._handles.append(self.driver.import_fd(descriptor, handle.size_bytes))
        finally:
            os.close(descriptor)
        return self._handles[-1]

    def map(self, address: int, *handles: PhysicalHandle) -> None:
        """The handles side by side, readable and writable."""
        here = address
        for handle in handles:
            self.driver.map(here, handle)
            self._mapped.append((here, handle.size_bytes))
            here += handle.size_bytes
        self.driver.set_access(address, here - address, Access.READ_WRITE)

    def clear(self) -> None:
        """Give everything back; what the test itself gave back is refused, and that is fine."""
        for address, size_bytes in self._mapped:
            with suppress(DriverError):
                self.driver.unmap(address, size_bytes)
        for handle in self._handles:
            with suppress(DriverError):
                self.driver.release(handle)
        for address, size_bytes in self._ranges:
            with suppress(DriverError):
                self.driver.free_address(address, size_bytes)
        self.driver.close()


class DriverContract:
    """Inherit it, and define a fixture `open_driver`."""

    @pytest.fixture
    def bench(self, open_driver: Callable[[], Driver]) -> Iterator[Bench]:
        bench = Bench(open_driver())
        yield bench
        bench.clear()

    @pytest.fixture
    def other(self, open_driver: Callable[[], Driver]) -> Iterator[Bench]:
        """A second driver, as another process would have it."""
        bench = Bench(open_driver())
        yield bench
        bench.clear()

    def peek(self, address: int, size_bytes: int) -> bytes:
        return ctypes.string_at(address, size_bytes)

    def poke(self, address: int, content: bytes) -> None:
        ctypes.memmove(address, content, len(content))

    @contextmanager
    def refused(self, driver: Driver, call: str) -> Iterator[None]:
        """The block raises DriverError for `call`, and the hardware was not asked."""
        before = dict(driver.calls())
        with pytest.raises(DriverError) as caught:
            yield
        assert caught.value.call == call
        assert dict(driver.calls()) == before

    # --- reserve and free

    @pytest.mark.parametrize("granules", [1, 3, 16])
    def test_a_reserved_range_is_aligned_and_holds_no_memory(self, bench: Bench, granules: int) -> None:
        assert bench.reserve(granules) % bench.granule == 0
        assert bench.driver.memory_info().held_bytes == 0

    def test_ranges_do_not_overlap(self, bench: Bench) -> None:
        starts = sorted(bench.reserve(3) for _ in range(8))
        assert all(after - before >= 3 * bench.granule for before, after in itertools.pairwise(starts))

    @pytest.mark.parametrize("size", [0, -1, 1])
    def test_a_size_that_is_no_positive_multiple_of_the_granule_is_refused(self, bench: Bench, size: int) -> None:
        wrong = size if size < 1 else bench.granule + 1
        with self.refused(bench.driver, "reserve"):
            bench.driver.reserve(wrong)
        with self.refused(bench.driver, "create"):
            bench.driver.create(wrong)

    def test_only_exactly_a_reserved_range_is_freed(self, bench: Bench) -> None:
        address, size = bench.reserve(4), 4 * bench.granule
        for wrong in ((address, size - bench.granule), (address + bench.granule, size - bench.granule), (address, 0)):
            with self.refused(bench.driver, "free_address"):
                bench.driver.free_address(*wrong)
        bench.driver.free_address(address, size)
        with self.refused(bench.driver, "free_address"):
            bench.driver.free_address(address, size)

    def test_a_range_is_not_freed_while_something_is_mapped_in_it(self, bench: Bench) -> None:
        address = bench.reserve(2)
        bench.map(address + bench.granule, bench.create())
        with self.refused(bench.driver, "free_address"):
            bench.driver.free_address(address, 2 * bench.granule)
        bench.driver.unmap(address + bench.granule, bench.granule)
        bench.driver.free_address(address, 2 * bench.granule)

    # --- map

    def test_a_handle_is_mapped_only_into_reserved_address(self, bench: Bench) -> None:
        address, handle = bench.reserve(2), bench.create(2)
        for wrong in (address + bench.granule, address - bench.granule, address + 2 * bench.granule, 0):
            with self.refused(bench.driver, "map"):
                bench.driver.map(wrong, handle)
        bench.map(address, handle)

    def test_a_handle_is_mapped_only_at_an_aligned_address(self, bench: Bench) -> None:
        address, handle = bench.reserve(2), bench.create()
        with self.refused(bench.driver, "map"):
            bench.driver.map(address + bench.granule // 2, handle)

    @pytest.mark.parametrize("offset", [0, 1, 2])
    def test_a_handle_is_not_mapped_over_another(self, bench: Bench, offset: int) -> None:
        address, first, second = bench.reserve(4), bench.create(2), bench.create(2)
        bench.map(address + bench.granule, first)
        with self.refused(bench.driver, "map"):
            bench.driver.map(address + offset * bench.granule, second)

    def test_a_handle_of_another_driver_is_refused_everywhere(self, bench: Bench, other: Bench) -> None:
        address, foreign = bench.reserve(1), other.create()
        bench.create()
        with self.refused(bench.driver, "map"):
            bench.driver.map(address, foreign)
        with self.refused(bench.driver, "release"):
            bench.driver.release(foreign)
        with self.refused(bench.driver, "export_fd"):
            bench.driver.export_fd(foreign)
        with self.refused(bench.driver, "scrub"):
            bench.driver.scrub(foreign)

    def test_a_handle_with_another_size_than_its_own_is_refused(self, bench: Bench) -> None:
        address, handle = bench.reserve(2), bench.create()
        with self.refused(bench.driver, "map"):
            bench.driver.map(address, PhysicalHandle(handle.number, 2 * bench.granule))

    def test_one_handle_at_two_addresses_shows_the_same_bytes(self, bench: Bench) -> None:
        address, handle = bench.reserve(2), bench.create()
        bench.map(address, handle, handle)
        self.poke(address, b"written once")
        assert self.peek(address + bench.granule, 12) == b"written once"

    # --- access

    def test_access_is_set_over_whole_mappings_only(self, bench: Bench) -> None:
        address = bench.reserve(4)
        bench.map(address, bench.create(2))
        for first, count in ((0, 1), (1, 1), (0, 3), (2, 1), (0, 0), (-1, 3)):
            with self.refused(bench.driver, "set_access"):
                bench.driver.set_access(address + first * bench.granule, count * bench.granule, Access.READ)
        bench.driver.set_access(address, 2 * bench.granule, Access.READ)

    def test_access_to_many_adjacent_mappings_is_one_call(self, bench: Bench) -> None:
        address = bench.reserve(3)
        bench.map(address, bench.create(), bench.create(2))
        self.poke(address, b"k" * (3 * bench.granule))
        assert bench.driver.calls()["set_access"] == 1

    def test_bytes_stay_when_access_is_taken_and_given_again(self, bench: Bench) -> None:
        address = bench.reserve(1)
        bench.map(address, bench.create())
        self.poke(address, b"kept")
        bench.driver.set_access(address, bench.granule, Access.READ)
        assert self.peek(address, 4) == b"kept"
        bench.driver.set_access(address, bench.granule, Access.READ_WRITE)
        self.poke(address, b"more")
        assert self.peek(address, 4) == b"more"

    # --- unmap

    def test_only_whole_mappings_are_unmapped(self, bench: Bench) -> None:
        address = bench.reserve(4)
        bench.map(address, bench.create(2))
        for first, count in ((0, 1), (1, 1), (0, 3), (2, 1), (0, 0), (1, 2)):
            with self.refused(bench.driver, "unmap"):
                bench.driver.unmap(address + first * bench.granule, count * bench.granule)
        self.poke(address, b"still mapped")
        bench.driver.unmap(address, 2 * bench.granule)
        with self.refused(bench.driver, "unmap"):
            bench.driver.unmap(address, 2 * bench.granule)

    def test_adjacent_mappings_are_unmapped_in_one_call(self, bench: Bench) -> None:
        address = bench.reserve(4)
        bench.map(address, bench.create(), bench.create(2), bench.create())
        bench.driver.unmap(address, 3 * bench.granule)
        self.poke(address + 3 * bench.granule, b"the rest is untouched")
        assert bench.driver.calls()["unmap"] == 1

    def test_the_address_stays_reserved_after_unmap_and_takes_another_handle(self, bench: Bench) -> None:
        address, first, second = bench.reserve(1), bench.create(), bench.create()
        bench.map(address, first)
        self.poke(address, b"first")
        bench.driver.unmap(address, bench.granule)
        bench.map(address, second)
        self.poke(address, b"other")
        bench.driver.unmap(address, bench.granule)
        bench.map(address, first)
        assert self.peek(address, 5) == b"first"
        assert bench.driver.calls()["reserve"] == 1

    # --- release

    def test_memory_outlives_its_handle_while_it_is_mapped(self, bench: Bench) -> None:
        address, handle = bench.reserve(1), bench.create()
        bench.map(address, handle)
        bench.driver.release(handle)
        self.poke(address, b"alive")
        assert self.peek(address, 5) == b"alive"
        assert bench.driver.memory_info().held_bytes == bench.granule
        bench.driver.unmap(address, bench.granule)
        assert bench.driver.memory_info().held_bytes == 0

    def test_a_released_handle_is_refused_everywhere(self, bench: Bench) -> None:
        address, handle = bench.reserve(2), bench.create()
        bench.map(address, handle)
        bench.driver.release(handle)
        with self.refused(bench.driver, "release"):
            bench.driver.release(handle)
        with self.refused(bench.driver, "map"):
            bench.driver.map(address + bench.granule, handle)
        with self.refused(bench.driver, "export_fd"):
            bench.driver.export_fd(handle)

    def test_a_number_is_never_used_twice(self, bench: Bench) -> None:
        seen = set()
        for _ in range(20):
            handle = bench.create()
            bench.driver.release(handle)
            seen.add(handle.number)
        assert len(seen) == 20

    # --- export and import

    def test_exporter_and_importer_see_the_same_bytes(self, bench: Bench, other: Bench) -> None:
        handle = bench.create(2)
        imported = other.import_from(bench, handle)
        here, there = bench.reserve(2), other.reserve(2)
        bench.map(here, handle)
        other.map(there, imported)
        self.poke(here + bench.granule, b"from the exporter")
        assert self.peek(there + bench.granule, 17) == b"from the exporter"
        self.poke(there, b"from the importer")
        assert self.peek(here, 17) == b"from the importer"

    def test_an_import_survives_the_exporters_release(self, bench: Bench, other: Bench) -> None:
        handle, here, there = bench.create(), bench.reserve(1), other.reserve(1)
        bench.map(here, handle)
        self.poke(here, b"handed over")
        imported = other.import_from(bench, handle)
        bench.driver.unmap(here, bench.granule)
        bench.driver.release(handle)
        other.map(there, imported)
        assert self.peek(there, 11) == b"handed over"

    def test_each_export_is_a_new_descriptor_closed_on_exec(self, bench: Bench) -> None:
        handle = bench.create()
        descriptors = [bench.driver.export_fd(handle) for _ in range(3)]
        try:
            assert len(set(descriptors)) == 3
            assert not any(os.get_inheritable(descriptor) for descriptor in descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def test_importing_takes_no_ownership_of_the_descriptor(self, bench: Bench, other: Bench) -> None:
        descriptor = bench.driver.export_fd(bench.create())
        other.driver.release(other.driver.import_fd(descriptor, bench.granule))
        os.close(descriptor)  # still the caller's

    # --- fork

    def test_a_forked_child_dies_where_its_parent_writes_and_the_parent_is_unhurt(self, bench: Bench) -> None:
        address = bench.reserve(3)
        bench.map(address + bench.granule, bench.create())
        self.poke(address + bench.granule, b"kept")
        ended = forked(lambda: self.poke(address + bench.granule, b"lost"))
        assert (os.WIFSIGNALED(ended), os.WTERMSIG(ended)) == (True, signal.SIGSEGV)
        assert self.peek(address + bench.granule, 4) == b"kept"

    def test_a_forked_child_is_refused_everything(self, bench: Bench) -> None:
        def act() -> None:
            with self.refused(bench.driver, "reserve"):
                bench.driver.reserve(bench.granule)

        assert forked(act) == 0

    # --- the rest

    def test_a_scrubbed_handle_is_all_zeros(self, bench: Bench) -> None:
        address, handle = bench.reserve(2), bench.create(2)
        bench.map(address, handle)
        self.poke(address, b"s" * (2 * bench.granule))
        bench.driver.scrub(handle)
        assert self.peek(address, 2 * bench.granule) == bytes(2 * bench.granule)

    def test_every_call_is_counted_by_its_name(self, bench: Bench) -> None:
        address, handle = bench.reserve(1), bench.create()
        bench.map(address, handle)
        os.close(bench.driver.export_fd(handle))
        bench.driver.scrub(handle)
        bench.driver.synchronize()
        bench.driver.unmap(address, bench.granule)
        bench.driver.release(handle)
        bench.driver.free_address(address, bench.granule)
        counts = dict(bench.driver.calls())
        assert set(counts.values()) == {1}
        assert " ".join(sorted(counts)) == (
            "create export_fd free_address map release reserve scrub set_access synchronize unmap"
        )

    def test_created_memory_is_held_until_its_release(self, bench: Bench) -> None:
        handles = [bench.create(2), bench.create()]
        assert bench.driver.memory_info().held_bytes == 3 * bench.granule
        for handle in handles:
            bench.driver.release(handle)
        assert bench.driver.memory_info().held_bytes == 0

    def test_a_closed_driver_refuses_everything(self, bench: Bench) -> None:
        address, handle = bench.reserve(1), bench.create()
        bench.driver.release(handle)
        bench.driver.free_address(address, bench.granule)
        bench.driver.close()
        bench.driver.close()
        with self.refused(bench.driver, "reserve"):
            bench.driver.reserve(bench.granule)
        with self.refused(bench.driver, "create"):
            bench.driver.create(bench.granule)
        with self.refused(bench.driver, "synchronize"):
            bench.driver.synchronize()
