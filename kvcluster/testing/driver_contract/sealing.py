"""Sealed memory is read and never written, by whatever way."""

from __future__ import annotations

from kvcluster.driver.protocol import Access
from kvcluster.testing.driver_contract.bench import Bench, OnBench
from kvcluster.testing.driver_contract.child import ChildDriver


class SealContract(OnBench):
    def test_sealed_memory_is_mapped_to_be_read_and_never_to_be_written(self, bench: Bench) -> None:
        address, handle = bench.reserve(1), bench.create()
        bench.map(address, handle)
        bench.poke(address, b"for good")
        bench.driver.unmap(address, bench.granule)
        bench.driver.seal(handle)
        bench.map(address, handle, access=Access.READ)
        with bench.refused("set_access"):
            bench.driver.set_access(address, bench.granule, Access.READ_WRITE)
        assert bench.peek(address, 8) == b"for good"

    def test_memory_is_not_sealed_while_it_is_mapped(self, bench: Bench) -> None:
        address, handle = bench.reserve(1), bench.create()
        bench.map(address, handle)
        with bench.refused("seal"):
            bench.driver.seal(handle)
        bench.poke(address, b"still written")
        bench.driver.set_access(address, bench.granule, Access.READ)
        with bench.refused("seal"):
            bench.driver.seal(handle)
        bench.driver.unmap(address, bench.granule)
        bench.driver.seal(handle)

    def test_sealing_again_changes_nothing(self, bench: Bench) -> None:
        handle = bench.create()
        bench.driver.seal(handle)
        before = bench.calls()
        bench.driver.seal(handle)
        assert bench.calls() == before

    def test_sealed_memory_is_not_scrubbed(self, bench: Bench) -> None:
        handle = bench.create()
        bench.driver.seal(handle)
        with bench.refused("scrub"):
            bench.driver.scrub(handle)

    def test_a_run_with_sealed_memory_in_it_is_not_made_writable(self, bench: Bench) -> None:
        address, plain, sealed = bench.reserve(2), bench.create(), bench.create()
        bench.driver.seal(sealed)
        bench.map(address, plain, sealed, access=Access.READ)
        with bench.refused("set_access"):
            bench.driver.set_access(address, 2 * bench.granule, Access.READ_WRITE)
        bench.driver.set_access(address, bench.granule, Access.READ_WRITE)
        bench.poke(address, b"the plain one")

    def test_what_is_imported_of_sealed_memory_shows_its_bytes(self, bench: Bench, other: Bench) -> None:
        here, there, handle = bench.reserve(1), other.reserve(1), bench.create()
        bench.map(here, handle)
        bench.poke(here, b"published")
        bench.driver.unmap(here, bench.granule)
        bench.driver.seal(handle)
        other.map(there, other.import_from(bench, handle), access=Access.READ)
        assert other.peek(there, 9) == b"published"

    def test_a_joiner_that_writes_sealed_memory_ends_alone(self, bench: Bench, in_child: ChildDriver) -> None:
        address, handle = bench.reserve(1), bench.create()
        bench.map(address, handle)
        bench.poke(address, b"published")
        bench.driver.unmap(address, bench.granule)
        bench.driver.seal(handle)
        ended = in_child.act("store through a read mapping", bench.driver, handle)
        assert (ended.read, ended.was_stopped) == (b"publishe", True)
        bench.map(address, handle, access=Access.READ)
        assert bench.peek(address, 9) == b"published"
