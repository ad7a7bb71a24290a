"""What is under way: a fence covers what had begun and nothing later, and nobody waits for himself."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from kvcluster.driver.host import HostDriver, open_host_driver
from kvcluster.driver.protocol import Fence
from kvcluster.errors import DriverError
from kvcluster.testing.driver_contract import forked
from kvcluster.units import KIB, MIB

GRANULE = 64 * KIB


class Worker:
    """Work of another thread, from its construction until `end`."""

    def __init__(self, driver: HostDriver, others: ThreadPoolExecutor) -> None:
        self._end = threading.Event()
        begun = threading.Event()
        self._done: Future[None] = others.submit(self._work, driver, begun)
        begun.wait()

    def end(self) -> None:
        self._end.set()
        self._done.result()

    def _work(self, driver: HostDriver, begun: threading.Event) -> None:
        with driver.working():
            begun.set()
            self._end.wait()


@pytest.fixture
def driver() -> Iterator[HostDriver]:
    driver = open_host_driver(capacity_bytes=MIB)
    yield driver
    driver.close()


@pytest.fixture
def others() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as others:
        yield others


def test_a_fence_over_no_work_is_done(driver: HostDriver) -> None:
    fence: Fence = driver.fence()
    assert fence.done()
    fence.wait()
    driver.synchronize()
    assert driver.calls() == {"fence": 1, "synchronize": 1}


def test_a_fence_is_done_when_all_that_had_begun_has_ended(driver: HostDriver, others: ThreadPoolExecutor) -> None:
    first, second = Worker(driver, others), Worker(driver, others)
    fence = driver.fence()
    assert not fence.done()
    second.end()
    assert not fence.done()
    first.end()
    assert fence.done()
    fence.wait()


def test_work_that_begins_later_does_not_hold_a_fence_up(driver: HostDriver, others: ThreadPoolExecutor) -> None:
    first = Worker(driver, others)
    fence = driver.fence()
    later = Worker(driver, others)
    first.end()
    assert fence.done()
    fence.wait()
    later.end()
    assert fence.done()


@pytest.mark.parametrize("verb", ["fence", "synchronize"])
def test_to_wait_is_to_return_after_the_work(driver: HostDriver, others: ThreadPoolExecutor, verb: str) -> None:
    log: list[str] = []
    worker = Worker(driver, others)

    def wait() -> None:
        driver.fence().wait() if verb == "fence" else driver.synchronize()
        log.append("waited")

    waiting = others.submit(wait)
    while not driver.calls().get(verb):
        pass
    log.append("ended")
    worker.end()
    waiting.result()
    assert log == ["ended", "waited"]


def test_others_calls_go_on_while_one_waits(driver: HostDriver, others: ThreadPoolExecutor) -> None:
    worker = Worker(driver, others)
    waiting = others.submit(driver.synchronize)
    while not driver.calls().get("synchronize"):
        pass
    driver.free_address(driver.reserve(GRANULE), GRANULE)
    assert not waiting.done()
    worker.end()
    waiting.result()


def test_a_thread_does_not_wait_for_its_own_work(driver: HostDriver) -> None:
    with driver.working(), driver.working():
        fence = driver.fence()
        for verb, name in ((driver.synchronize, "synchronize"), (fence.wait, "fence")):
            with pytest.raises(DriverError) as caught:
                verb()
            assert (caught.value.call, str(caught.value.__cause__)) == (name, "work of this thread is under way")
        assert not fence.done()
    fence.wait()
    driver.synchronize()


def test_work_that_fails_has_ended(driver: HostDriver) -> None:
    with pytest.raises(ZeroDivisionError), driver.working():
        _ = 1 // 0
    driver.synchronize()  # which would be refused if it were still this thread's
    assert driver.fence().done()


def test_two_drivers_have_each_its_own_work(driver: HostDriver, others: ThreadPoolExecutor) -> None:
    other = open_host_driver(capacity_bytes=MIB)
    worker = Worker(other, others)
    driver.synchronize()
    assert driver.fence().done()
    worker.end()
    other.close()


def test_a_fence_in_a_forked_child_is_refused_and_waits_for_no_thread_of_its_parent(driver: HostDriver) -> None:
    with driver.working():
        fence = driver.fence()

        def act() -> None:
            for ask in (fence.done, fence.wait):
                with pytest.raises(DriverError) as caught:
                    ask()
                assert "forked" in str(caught.value.__cause__)

        assert forked(act) == 0


def test_a_forked_child_does_no_work_on_its_parents_memory(driver: HostDriver) -> None:
    def act() -> None:
        with pytest.raises(DriverError, match="working"), driver.working():
            raise AssertionError("it works")

    assert forked(act) == 0
