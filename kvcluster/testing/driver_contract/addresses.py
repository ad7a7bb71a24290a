"""Ranges of address: reserved, filled with whole handles, emptied, given back."""

from __future__ import annotations

import itertools

import pytest

from kvcluster.driver.protocol import Access, PhysicalHandle
from kvcluster.testing.driver_contract.bench import Bench, OnBench
from kvcluster.transaction import Progress


class AddressContract(OnBench):
    @pytest.mark.parametrize("granules", [1, 3, 16])
    def test_a_reserved_range_is_aligned_and_holds_no_memory(self, bench: Bench, granules: int) -> None:
        assert bench.reserve(granules) % bench.granule == 0
        assert bench.driver.memory_info().held_bytes == 0

    def test_ranges_do_not_overlap(self, bench: Bench) -> None:
        starts = sorted(bench.reserve(3) for _ in range(8))
        assert all(after - before >= 3 * bench.granule for before, after in itertools.pairwise(starts))

    @pytest.mark.parametrize("granules", [0, -1, 1.5, 2**64, 2**64 + 1], ids=str)
    def test_a_size_that_is_no_positive_multiple_of_the_granule_or_too_large_for_any_machine_is_refused(
        self, bench: Bench, granules: float
    ) -> None:
        wrong = int(granules * 2) * bench.granule // 2
        with bench.refused("reserve"):
            bench.driver.reserve(wrong)
        with bench.refused("create"):
            bench.driver.create(wrong)
        with bench.refused("import_fd"):
            bench.driver.import_fd(0, wrong)

    def test_only_exactly_a_reserved_range_is_freed(self, bench: Bench) -> None:
        address, size = bench.reserve(4), 4 * bench.granule
        for wrong in ((address, size - bench.granule), (address + bench.granule, size - bench.granule), (address, 0)):
            with bench.refused("free_address"):
                bench.driver.free_address(*wrong)
        bench.driver.free_address(address, size)
        with bench.refused("free_address"):
            bench.driver.free_address(address, size)

    def test_a_range_is_not_freed_while_something_is_mapped_in_it(self, bench: Bench) -> None:
        address = bench.reserve(2)
        bench.map(address + bench.granule, bench.create())
        with bench.refused("free_address"):
            bench.driver.free_address(address, 2 * bench.granule)
        bench.driver.unmap(address + bench.granule, bench.granule)
        bench.driver.free_address(address, 2 * bench.granule)

    def test_a_range_of_another_driver_is_refused_everywhere(self, bench: Bench, other: Bench) -> None:
        foreign, size, handle = other.reserve(2), 2 * bench.granule, bench.create(2)
        with bench.refused("map"):
            bench.map_only(foreign, handle)
        with bench.refused("unmap"):
            bench.driver.unmap(foreign, size)
        with bench.refused("free_address"):
            bench.driver.free_address(foreign, size)

    # --- map

    def test_a_handle_is_mapped_only_into_reserved_address(self, bench: Bench) -> None:
        address, handle = bench.reserve(2), bench.create(2)
        for wrong in (address + bench.granule, address - bench.granule, address + 2 * bench.granule, 0):
            with bench.refused("map"):
                bench.map_only(wrong, handle)
        bench.map(address, handle)

    def test_a_handle_is_mapped_only_at_an_aligned_address(self, bench: Bench) -> None:
        address, handle = bench.reserve(2), bench.create()
        with bench.refused("map"):
            bench.map_only(address + bench.granule // 2, handle)

    @pytest.mark.parametrize("offset", [0, 1, 2])
    def test_a_handle_is_not_mapped_over_another(self, bench: Bench, offset: int) -> None:
        address, first, second = bench.reserve(4), bench.create(2), bench.create(2)
        bench.map(address + bench.granule, first)
        with bench.refused("map"):
            bench.map_only(address + offset * bench.granule, second)

    def test_a_handle_with_another_size_than_its_own_is_refused(self, bench: Bench) -> None:
        address, handle = bench.reserve(2), bench.create()
        with bench.refused("map"):
            bench.map_only(address, PhysicalHandle(handle.number, 2 * bench.granule))

    def test_one_handle_at_two_addresses_shows_the_same_bytes(self, bench: Bench) -> None:
        address, handle = bench.reserve(2), bench.create()
        bench.map(address, handle, handle)
        bench.poke(address, b"written once")
        assert bench.peek(address + bench.granule, 12) == b"written once"

    def test_a_run_of_handles_lies_side_by_side_and_each_is_counted(self, bench: Bench) -> None:
        address, handles, done = bench.reserve(5), [bench.create(size) for size in (1, 2, 1)], Progress()
        before = bench.calls().get("map", 0)
        bench.driver.map(address, handles, done)
        bench.driver.set_access(address, 4 * bench.granule, Access.READ_WRITE)
        assert (done.count, bench.calls()["map"] - before) == (3, 3)
        bench.poke(address + 3 * bench.granule, b"the last")
        bench.driver.unmap(address, 4 * bench.granule)
        bench.map(address, handles[2])
        assert bench.peek(address, 8) == b"the last"

    def test_a_run_that_breaks_a_rule_anywhere_maps_nothing(self, bench: Bench) -> None:
        address, taken, first, last = bench.reserve(4), bench.create(), bench.create(2), bench.create()
        bench.map(address + 2 * bench.granule, taken)
        released = bench.create()
        bench.driver.release(released)
        done = Progress()
        for start, handles in ((0, [first, last]), (3, [last, first]), (0, [last, released]), (0, [])):
            with bench.refused("map"):
                bench.driver.map(address + start * bench.granule, handles, done)
        assert done.count == 0
        bench.map(address, first)

    # --- unmap

    def test_only_whole_mappings_are_unmapped(self, bench: Bench) -> None:
        address = bench.reserve(4)
        bench.map(address, bench.create(2))
        for first, count in ((0, 1), (1, 1), (0, 3), (2, 1), (0, 0), (1, 2)):
            with bench.refused("unmap"):
                bench.driver.unmap(address + first * bench.granule, count * bench.granule)
        bench.poke(address, b"still mapped")
        bench.driver.unmap(address, 2 * bench.granule)
        with bench.refused("unmap"):
            bench.driver.unmap(address, 2 * bench.granule)

    def test_adjacent_mappings_are_unmapped_in_one_call(self, bench: Bench) -> None:
        address = bench.reserve(4)
        bench.map(address, bench.create(), bench.create(2), bench.create())
        bench.driver.unmap(address, 3 * bench.granule)
        bench.poke(address + 3 * bench.granule, b"the rest is untouched")
        assert bench.driver.calls()["unmap"] == 1

    def test_the_address_stays_reserved_after_unmap_and_takes_another_handle(self, bench: Bench) -> None:
        address, first, second = bench.reserve(1), bench.create(), bench.create()
        bench.map(address, first)
        bench.poke(address, b"first")
        bench.driver.unmap(address, bench.granule)
        bench.map(address, second)
        bench.poke(address, b"other")
        bench.driver.unmap(address, bench.granule)
        bench.map(address, first)
        assert bench.peek(address, 5) == b"first"
        assert bench.driver.calls()["reserve"] == 1
