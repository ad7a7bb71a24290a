"""What a mapping allows: nothing until it is said, then reads, or reads and writes, of whole mappings."""

from __future__ import annotations

from kvcluster.driver.protocol import Access
from kvcluster.testing.driver_contract.bench import Bench, OnBench
from kvcluster.testing.driver_contract.child import ChildDriver


class AccessContract(OnBench):
    def test_access_is_set_over_whole_mappings_only(self, bench: Bench) -> None:
        address = bench.reserve(4)
        bench.map(address, bench.create(2))
        for first, count in ((0, 1), (1, 1), (0, 3), (2, 1), (0, 0), (-1, 3)):
            with bench.refused("set_access"):
                bench.driver.set_access(address + first * bench.granule, count * bench.granule, Access.READ)
        bench.driver.set_access(address, 2 * bench.granule, Access.READ)

    def test_access_to_many_adjacent_mappings_is_one_call(self, bench: Bench) -> None:
        address = bench.reserve(3)
        bench.map(address, bench.create(), bench.create(2))
        bench.poke(address, b"k" * (3 * bench.granule))
        assert bench.driver.calls()["set_access"] == 1

    def test_bytes_stay_when_access_is_taken_and_given_again(self, bench: Bench) -> None:
        address = bench.reserve(1)
        bench.map(address, bench.create())
        bench.poke(address, b"kept")
        bench.driver.set_access(address, bench.granule, Access.READ)
        assert bench.peek(address, 4) == b"kept"
        bench.driver.set_access(address, bench.granule, Access.READ_WRITE)
        bench.poke(address, b"more")
        assert bench.peek(address, 4) == b"more"

    def test_one_handle_at_two_addresses_has_two_accesses(self, bench: Bench) -> None:
        written, read, handle = bench.reserve(1), bench.reserve(1), bench.create()
        bench.map(written, handle)
        bench.map(read, handle, access=Access.READ)
        bench.poke(written, b"through one")
        assert bench.peek(read, 11) == b"through one"

    def test_a_store_through_a_read_mapping_ends_its_process_alone(self, bench: Bench, in_child: ChildDriver) -> None:
        address, handle = bench.reserve(1), bench.create()
        bench.map(address, handle)
        bench.poke(address, b"untouched")
        ended = in_child.act("store through a read mapping", bench.driver, handle)
        assert (ended.read, ended.was_stopped) == (b"untouche", True)
        assert bench.peek(address, 9) == b"untouched"

    def test_a_handle_mapped_twice_is_written_through_the_one_and_not_through_the_other(
        self, bench: Bench, in_child: ChildDriver
    ) -> None:
        address, handle = bench.reserve(1), bench.create()
        bench.map(address, handle)
        bench.poke(address, b"nothing")
        ended = in_child.act("store through both", bench.driver, handle)
        assert (ended.read, ended.was_stopped) == (b"by child", True)
        assert bench.peek(address, 8) == b"by child"

    def test_a_mapping_has_no_access_until_it_is_set(self, bench: Bench, in_child: ChildDriver) -> None:
        assert in_child.act("look without access", bench.driver, bench.create()).was_stopped
