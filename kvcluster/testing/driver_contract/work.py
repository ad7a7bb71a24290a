"""Waiting for work that may touch the memory: with nothing under way nothing waits."""

from __future__ import annotations

from kvcluster.testing.driver_contract.bench import Bench, OnBench


class WorkContract(OnBench):
    def test_a_fence_of_no_work_is_done_at_once_and_stays_so(self, bench: Bench) -> None:
        fence = bench.driver.fence()
        assert [fence.done(), fence.done()] == [True, True]
        fence.wait()

    def test_fences_are_made_and_dropped_in_any_number(self, bench: Bench) -> None:
        fences = [bench.driver.fence() for _ in range(20)]
        assert all(fence.done() for fence in reversed(fences))
        fences.clear()
        assert bench.driver.fence().done()

    def test_synchronizing_with_nothing_under_way_returns(self, bench: Bench) -> None:
        bench.driver.synchronize()
        assert bench.driver.calls()["synchronize"] == 1
