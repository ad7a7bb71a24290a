"""Handles: created, held, scrubbed, released once, and never taken for another's."""

from __future__ import annotations

import os

from kvcluster.testing.driver_contract.bench import Bench, OnBench


class HandleContract(OnBench):
    def test_memory_outlives_its_handle_while_it_is_mapped(self, bench: Bench) -> None:
        address, handle = bench.reserve(1), bench.create()
        bench.map(address, handle)
        bench.driver.release(handle)
        bench.poke(address, b"alive")
        assert bench.peek(address, 5) == b"alive"
        assert bench.driver.memory_info().held_bytes == bench.granule
        bench.driver.unmap(address, bench.granule)
        assert bench.driver.memory_info().held_bytes == 0

    def test_a_released_handle_is_refused_everywhere(self, bench: Bench) -> None:
        address, handle = bench.reserve(2), bench.create()
        bench.map(address, handle)
        bench.driver.release(handle)
        with bench.refused("release"):
            bench.driver.release(handle)
        with bench.refused("map"):
            bench.map_only(address + bench.granule, handle)
        with bench.refused("export_fd"):
            bench.driver.export_fd(handle)
        with bench.refused("scrub"):
            bench.driver.scrub(handle)
        with bench.refused("seal"):
            bench.driver.seal(handle)
        bench.poke(address, b"alive")

    def test_a_handle_of_another_driver_is_refused_everywhere(self, bench: Bench, other: Bench) -> None:
        address, foreign = bench.reserve(1), other.create()
        bench.create()
        with bench.refused("map"):
            bench.map_only(address, foreign)
        with bench.refused("release"):
            bench.driver.release(foreign)
        with bench.refused("export_fd"):
            bench.driver.export_fd(foreign)
        with bench.refused("scrub"):
            bench.driver.scrub(foreign)
        with bench.refused("seal"):
            bench.driver.seal(foreign)

    def test_a_number_is_never_used_twice(self, bench: Bench) -> None:
        seen = set()
        for _ in range(20):
            handle = bench.create()
            bench.driver.release(handle)
            seen.add(handle.number)
        assert len(seen) == 20

    def test_created_memory_is_held_until_its_release(self, bench: Bench) -> None:
        handles = [bench.create(2), bench.create()]
        assert bench.driver.memory_info().held_bytes == 3 * bench.granule
        for handle in handles:
            bench.driver.release(handle)
        assert bench.driver.memory_info().held_bytes == 0

    def test_a_scrubbed_handle_is_all_zeros(self, bench: Bench) -> None:
        address, handle = bench.reserve(2), bench.create(2)
        bench.map(address, handle)
        bench.poke(address, b"s" * (2 * bench.granule))
        bench.driver.scrub(handle)
        assert bench.peek(address, 2 * bench.granule) == bytes(2 * bench.granule)

    def test_scrubbing_holds_nothing_once_it_is_done(self, bench: Bench) -> None:
        handle = bench.create()
        bench.driver.scrub(handle)
        bench.driver.release(handle)
        assert bench.driver.memory_info().held_bytes == 0

    def test_every_call_is_counted_by_its_name(self, bench: Bench) -> None:
        address, handle = bench.reserve(1), bench.create()
        bench.map(address, handle)
        os.close(bench.driver.export_fd(handle))
        bench.driver.scrub(handle)
        bench.driver.synchronize()
        bench.driver.fence()
        bench.driver.unmap(address, bench.granule)
        bench.driver.seal(handle)
        bench.driver.release(handle)
        bench.driver.free_address(address, bench.granule)
        counts = bench.calls()
        assert set(counts.values()) == {1}
        assert " ".join(sorted(counts)) == (
            "create export_fd fence free_address map release reserve scrub seal set_access synchronize unmap"
        )

    def test_the_cpu_reaches_host_memory_and_every_other_is_copied(self, bench: Bench) -> None:
        address = bench.reserve(1)
        bench.map(address, bench.create())
        bench.poke(address, b"seen")
        assert bench.peek(address, 4) == b"seen"
