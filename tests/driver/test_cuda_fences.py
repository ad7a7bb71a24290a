"""Fences and synchronize on CUDA: what is under way when they are asked, in which stream, and what failed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator

import pytest
from cuda.bindings import driver as cu

from kvcluster.driver.cuda import open_cuda_driver
from kvcluster.driver.gate import Meanwhile, capture_gate
from kvcluster.driver.protocol import Driver
from kvcluster.errors import DriverError
from kvcluster.testing.stand_in_cuda import StandIn


class TestFences:
    @pytest.fixture
    def driver(self, stand_in: StandIn) -> Iterator[Driver]:
        driver = open_cuda_driver()
        yield driver
        driver.close()

    def test_a_fence_is_done_when_the_work_before_it_is(self, stand_in: StandIn, driver: Driver) -> None:
        work = stand_in.begin_work()
        fence = driver.fence()
        later = stand_in.begin_work()
        assert not fence.done()
        stand_in.end_work(work)
        assert fence.done()
        stand_in.end_work(later)

    def test_a_fence_in_a_stream_of_its_own_waits_for_that_alone(self, stand_in: StandIn, driver: Driver) -> None:
        driver.synchronize()
        stream = int(cu.cuStreamCreate(1)[1])
        own, elsewhere = stand_in.begin_work(stream), stand_in.begin_work()
        fence, everywhere = driver.fence(stream), driver.fence()
        stand_in.end_work(own)
        assert (fence.done(), everywhere.done()) == (True, False)
        stand_in.end_work(elsewhere)
        assert everywhere.done()
        cu.cuStreamDestroy(stream)

    @pytest.mark.parametrize(
        ("wait", "asked", "times"),
        [
            (lambda driver: driver.fence().wait(), "cuEventQuery", 3),
            (lambda driver: driver.synchronize(), "cuCtxSynchronize", 1),
        ],
    )
    def test_waiting_ends_with_the_work(
        self, stand_in: StandIn, driver: Driver, wait: Callable[[Driver], None], asked: str, times: int
    ) -> None:
        log: list[str] = []
        before = stand_in.calls(asked)
        work = stand_in.begin_work()
        thread = threading.Thread(target=lambda: (wait(driver), log.append("waited")))
        thread.start()
        while stand_in.calls(asked) < before + times and thread.is_alive():
            os.sched_yield()
        log.append("worked")
        stand_in.end_work(work)
        thread.join()
        assert log == ["worked", "waited"]

    def test_other_calls_go_on_while_a_fence_is_waited_for(self, stand_in: StandIn, driver: Driver) -> None:
        work = stand_in.begin_work()
        thread = threading.Thread(target=driver.fence().wait)
        thread.start()
        driver.release(driver.create(driver.granularity_bytes))
        stand_in.end_work(work)
        thread.join()

    def test_work_that_failed_is_an_error_and_never_done(self, stand_in: StandIn, driver: Driver) -> None:
        fence = driver.fence()
        stand_in.fail("cuEventQuery@1+=719")
        for ask in (fence.done, fence.wait, fence.done):
            with pytest.raises(DriverError, match="CUDA_ERROR_LAUNCH_FAILED"):
                ask()

    def test_a_dropped_fences_event_is_used_again_and_goes_with_the_driver(
        self, stand_in: StandIn, driver: Driver
    ) -> None:
        before = stand_in.alive("events")
        for _ in range(10):
            assert driver.fence().done()
        assert stand_in.alive("events") == before + 1
        driver.close()
        assert stand_in.alive("events") == before

    def test_during_a_capture_a_fence_cannot_be_asked_and_can_be_after_it(
        self, stand_in: StandIn, driver: Driver
    ) -> None:
        fence, before = driver.fence(), stand_in.calls()
        with capture_gate.closed(Meanwhile.REFUSE):
            for ask in (fence.done, fence.wait):
                with pytest.raises(DriverError, match="EBUSY"):
                    ask()
        assert stand_in.calls() == before
        assert fence.done()

    def test_what_a_closed_driver_left_under_way_cannot_be_confirmed(self, stand_in: StandIn, driver: Driver) -> None:
        ended, running = driver.fence(), driver.fence()
        assert ended.done()
        driver.close()
        assert ended.done()
        with pytest.raises(DriverError, match="fence"):
            running.done()
