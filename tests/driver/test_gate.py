"""While a graph is captured no memory call of the process runs: who waits, who is refused, that nothing slips by."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from kvcluster.driver.gate import CaptureGate, Meanwhile, capture_gate
from kvcluster.driver.host import HostDriver, open_host_driver
from kvcluster.driver.strict import Asked, Entrance
from kvcluster.errors import DriverError, KvClusterError
from kvcluster.testing.driver_contract import forked
from kvcluster.transaction import Progress
from kvcluster.units import MIB
from tests.driver.gates import BOTH, GRANULE, refusal_of, reserve_and_free, until


@pytest.fixture
def driver() -> Iterator[HostDriver]:
    driver = open_host_driver(capacity_bytes=4 * MIB)
    yield driver
    driver.close()


@BOTH
def test_a_call_of_the_capturing_thread_is_refused_and_makes_none(driver: HostDriver, meanwhile: Meanwhile) -> None:
    with capture_gate.closed(meanwhile):
        refusal = refusal_of(lambda: driver.reserve(GRANULE))
    assert (refusal.call, refusal.code, refusal.name, refusal.size_bytes) == ("reserve", errno.EBUSY, "EBUSY", GRANULE)
    assert "this thread is capturing" in str(refusal.__cause__)
    assert driver.calls() == {}
    reserve_and_free(driver)


@BOTH
def test_every_verb_of_the_capturing_thread_is_refused_and_changes_nothing(
    driver: HostDriver, meanwhile: Meanwhile
) -> None:
    address, handle, loose = driver.reserve(2 * GRANULE), driver.create(GRANULE), driver.create(GRANULE)
    driver.map(address, [handle], Progress())
    before = dict(driver.calls())
    verbs: tuple[Callable[[], object], ...] = (
        lambda: driver.reserve(GRANULE),
        lambda: driver.create(GRANULE),
        lambda: driver.map(address + GRANULE, [handle], Progress()),
        lambda: driver.unmap(address, GRANULE),
        lambda: driver.release(handle),
        lambda: driver.free_address(address, 2 * GRANULE),
        lambda: driver.seal(loose),
        lambda: driver.export_fd(handle),
        lambda: driver.import_fd(0, GRANULE),
        lambda: driver.scrub(handle),
        driver.synchronize,
        driver.fence,
        driver.memory_info,
    )
    with capture_gate.closed(meanwhile):
        assert {refusal_of(verb).code for verb in verbs} == {errno.EBUSY}
    assert driver.calls() == before
    driver.unmap(address, GRANULE)
    driver.release(handle)
    driver.release(loose)
    driver.free_address(address, 2 * GRANULE)


def test_a_call_of_another_thread_waits_until_the_capture_has_ended(
    driver: HostDriver, others: ThreadPoolExecutor
) -> None:
    log: list[str] = []
    with capture_gate.closed(Meanwhile.WAIT):
        waiting = others.submit(lambda: (reserve_and_free(driver), log.append("called")))
        until(lambda: capture_gate.waiting == 1)
        log.append("captured")
        assert driver.calls() == {}
    waiting.result()
    assert log == ["captured", "called"]
    assert capture_gate.waiting == 0


def test_a_call_of_another_thread_is_refused_where_none_may_wait(
    driver: HostDriver, others: ThreadPoolExecutor
) -> None:
    with capture_gate.closed(Meanwhile.REFUSE):
        refusal = refusal_of(others.submit(driver.reserve, GRANULE).result)
    assert (refusal.code, driver.calls()) == (errno.EBUSY, {})
    assert "another thread is capturing" in str(refusal.__cause__)
    others.submit(reserve_and_free, driver).result()


def test_captures_nest_and_the_last_to_end_opens_the_gate(driver: HostDriver, others: ThreadPoolExecutor) -> None:
    with capture_gate.closed(Meanwhile.REFUSE):
        with capture_gate.closed(Meanwhile.REFUSE):
            pass
        assert refusal_of(others.submit(driver.reserve, GRANULE).result).code == errno.EBUSY
        assert refusal_of(lambda: driver.reserve(GRANULE)).code == errno.EBUSY
    reserve_and_free(driver)


def test_captures_of_two_threads_overlap(driver: HostDriver, others: ThreadPoolExecutor) -> None:
    end, begun = threading.Event(), threading.Event()

    def capture() -> None:
        with capture_gate.closed(Meanwhile.WAIT):
            begun.set()
            end.wait()

    with capture_gate.closed(Meanwhile.WAIT):
        capturing = others.submit(capture)
        begun.wait()
    waiting = others.submit(reserve_and_free, driver)
    until(lambda: capture_gate.waiting == 1)
    assert driver.calls() == {}
    end.set()
    capturing.result()
    waiting.result()


def test_a_capture_that_refuses_refuses_those_that_wait_for_another(
    driver: HostDriver, others: ThreadPoolExecutor
) -> None:
    with capture_gate.closed(Meanwhile.WAIT):
        waiting = others.submit(driver.reserve, GRANULE)
        until(lambda: capture_gate.waiting == 1)
        with capture_gate.closed(Meanwhile.REFUSE):
            assert refusal_of(waiting.result).code == errno.EBUSY


def test_a_capture_that_fails_opens_the_gate(driver: HostDriver) -> None:
    with pytest.raises(ZeroDivisionError), capture_gate.closed(Meanwhile.WAIT):
        _ = 1 // 0
    reserve_and_free(driver)


@BOTH
def test_what_is_no_memory_call_passes(driver: HostDriver, meanwhile: Meanwhile) -> None:
    with capture_gate.closed(meanwhile):
        assert (driver.granularity_bytes, driver.is_host_memory, driver.calls()) == (GRANULE, True, {})
        with driver.working():
            pass


@BOTH
def test_a_driver_that_is_opened_meanwhile_is_closed_too(meanwhile: Meanwhile) -> None:
    with capture_gate.closed(meanwhile):
        late = open_host_driver(capacity_bytes=MIB)
        assert refusal_of(lambda: late.create(GRANULE)).code == errno.EBUSY
    late.release(late.create(GRANULE))
    late.close()


def test_a_closed_driver_stays_closed_when_the_gate_opens() -> None:
    driver = open_host_driver(capacity_bytes=MIB)
    with capture_gate.closed(Meanwhile.REFUSE):
        driver.close()
    assert refusal_of(lambda: driver.create(GRANULE)).code == errno.EINVAL


def test_a_driver_that_is_closed_meanwhile_refuses_those_that_waited(others: ThreadPoolExecutor) -> None:
    driver = open_host_driver(capacity_bytes=MIB)
    with capture_gate.closed(Meanwhile.WAIT):
        waiting = others.submit(driver.create, GRANULE)
        until(lambda: capture_gate.waiting == 1)
        driver.close()
    assert refusal_of(waiting.result).code == errno.EINVAL


def test_a_forked_child_of_the_capturing_thread_uses_a_driver_of_its_own() -> None:
    def act() -> None:
        reserve_and_free(open_host_driver(capacity_bytes=MIB))

    with capture_gate.closed(Meanwhile.WAIT):
        assert forked(act) == 0


def _plain(asked: Asked, failure: Exception) -> KvClusterError:
    return DriverError(call=asked.call, code=errno.EINVAL, name="EINVAL")


def test_a_capture_begins_once_the_calls_under_way_have_ended(others: ThreadPoolExecutor) -> None:
    gate, log = CaptureGate(), list[str]()
    entrance, end, begun = Entrance(_plain, gate), threading.Event(), threading.Event()

    def call() -> None:
        with entrance.passing("map"):
            begun.set()
            end.wait()
            log.append("called")

    def capture() -> None:
        with gate.closed(Meanwhile.WAIT):
            log.append("captured")

    calling = others.submit(call)
    begun.wait()
    capturing = others.submit(capture)
    until(lambda: not entrance.is_open)  # it has shut the door, and waits for the call
    end.set()
    calling.result()
    capturing.result()
    assert log == ["called", "captured"]


def test_no_call_of_any_driver_runs_during_any_of_many_captures(others: ThreadPoolExecutor) -> None:
    drivers = [open_host_driver(capacity_bytes=MIB) for _ in range(2)]
    stop = threading.Event()

    def churn(driver: HostDriver) -> None:
        while not stop.is_set():
            reserve_and_free(driver)

    with ExitStack() as ending:
        churning: list[Future[None]] = [others.submit(churn, driver) for driver in drivers * 2]
        ending.callback(stop.set)
        for _ in range(50):
            before = [dict(driver.calls()) for driver in drivers]
            until(lambda before=before: [dict(driver.calls()) for driver in drivers] != before)  # type: ignore[misc]
            with capture_gate.closed(Meanwhile.WAIT):
                during = [dict(driver.calls()) for driver in drivers]
                until(lambda: capture_gate.waiting == len(churning))
                assert [dict(driver.calls()) for driver in drivers] == during
    for future in churning:
        future.result()
    for driver in drivers:
        driver.close()
