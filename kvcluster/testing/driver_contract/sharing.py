"""Export and import: two drivers, or two processes, on the same bytes."""

from __future__ import annotations

import os

import pytest

from kvcluster.testing.driver_contract.bench import Bench, OnBench
from kvcluster.testing.driver_contract.child import ChildDriver


class SharingContract(OnBench):
    def test_exporter_and_importer_see_the_same_bytes(self, bench: Bench, other: Bench) -> None:
        handle = bench.create(2)
        imported = other.import_from(bench, handle)
        here, there = bench.reserve(2), other.reserve(2)
        bench.map(here, handle)
        other.map(there, imported)
        bench.poke(here + bench.granule, b"from the exporter")
        assert other.peek(there + bench.granule, 17) == b"from the exporter"
        other.poke(there, b"from the importer")
        assert bench.peek(here, 17) == b"from the importer"

    def test_an_import_survives_the_exporters_release(self, bench: Bench, other: Bench) -> None:
        handle, here, there = bench.create(), bench.reserve(1), other.reserve(1)
        bench.map(here, handle)
        bench.poke(here, b"handed over")
        imported = other.import_from(bench, handle)
        bench.driver.unmap(here, bench.granule)
        bench.driver.release(handle)
        other.map(there, imported)
        assert other.peek(there, 11) == b"handed over"

    def test_what_is_imported_is_not_held_here(self, bench: Bench, other: Bench) -> None:
        address = other.reserve(1)
        other.map(address, other.import_from(bench, bench.create()))
        assert other.driver.memory_info().held_bytes == 0

    def test_what_was_imported_can_be_exported_again(self, bench: Bench, other: Bench) -> None:
        here, again, handle = bench.reserve(1), bench.reserve(1), bench.create()
        bench.map(here, handle)
        bench.poke(here, b"there and back")
        bench.map(again, bench.import_from(other, other.import_from(bench, handle)))
        assert bench.peek(again, 14) == b"there and back"

    def test_memory_outlives_the_process_that_created_it(self, bench: Bench, in_child: ChildDriver) -> None:
        descriptor = in_child.bequeath(2 * bench.granule, b"bequeathed")
        try:
            address = bench.reserve(2)
            bench.map(address, bench.adopt(descriptor, 2 * bench.granule))
        finally:
            os.close(descriptor)
        assert bench.peek(address, 10) == b"bequeathed"

    def test_each_export_is_a_new_descriptor_closed_on_exec(self, bench: Bench) -> None:
        handle = bench.create()
        descriptors = [bench.driver.export_fd(handle) for _ in range(3)]
        try:
            assert len(set(descriptors)) == 3
            assert not any(os.get_inheritable(descriptor) for descriptor in descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    @pytest.mark.parametrize("descriptor", [-1, 2**31, 2**64])
    def test_what_can_be_no_descriptor_is_refused(self, bench: Bench, descriptor: int) -> None:
        with bench.refused("import_fd"):
            bench.driver.import_fd(descriptor, bench.granule)

    def test_importing_takes_no_ownership_of_the_descriptor(self, bench: Bench, other: Bench) -> None:
        descriptor = bench.driver.export_fd(bench.create())
        other.driver.release(other.driver.import_fd(descriptor, bench.granule))
        os.close(descriptor)  # still the caller's
