"""An operation of several calls passes the gate as a whole: a capture is before it or after it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from kvcluster.driver.gate import Meanwhile, capture_gate
from kvcluster.driver.host import HostDriver, open_host_driver
from kvcluster.errors import NotAllowed
from kvcluster.testing.driver_contract import forked
from kvcluster.units import MIB
from tests.driver.gates import BOTH, refusal_of, reserve_and_free, until


@pytest.fixture
def driver() -> Iterator[HostDriver]:
    driver = open_host_driver(capacity_bytes=4 * MIB)
    yield driver
    driver.close()


@BOTH
def test_a_capture_begins_after_the_whole_of_an_operation_that_is_under_way(
    driver: HostDriver, others: ThreadPoolExecutor, meanwhile: Meanwhile
) -> None:
    log: list[str] = []

    def capture() -> None:
        with capture_gate.closed(meanwhile):
            log.append("captured")

    with capture_gate.passage("move"):
        capturing = others.submit(capture)
        until(lambda: capture_gate.is_closing)
        reserve_and_free(driver)
        with capture_gate.passage("a part of it"):
            reserve_and_free(driver)
        log.append("moved")
    capturing.result(timeout=30)
    assert log == ["moved", "captured"]


def test_no_operation_begins_while_a_capture_waits_for_another(others: ThreadPoolExecutor) -> None:
    def capture() -> None:
        with capture_gate.closed(Meanwhile.REFUSE):
            pass

    def move() -> None:
        with capture_gate.passage("move"):
            pass

    with capture_gate.passage("first"):
        capturing = others.submit(capture)
        until(lambda: capture_gate.is_closing)
        refusal = refusal_of(others.submit(move).result)
    assert (refusal.call, refusal.name) == ("move", "EBUSY")
    capturing.result(timeout=30)
    others.submit(move).result(timeout=30)


@BOTH
def test_an_operation_of_the_capturing_thread_is_refused_before_it_begins(meanwhile: Meanwhile) -> None:
    def move() -> None:
        with capture_gate.passage("move"):
            pytest.fail("it began")

    def move_patiently() -> None:
        with capture_gate.patient_passage("move"):
            pytest.fail("it began")

    with capture_gate.closed(meanwhile):
        for refusal in (refusal_of(move), refusal_of(move_patiently)):
            assert (refusal.call, refusal.name) == ("move", "EBUSY")
            assert "this thread is capturing" in str(refusal.__cause__)


def test_a_patient_operation_waits_where_another_is_refused(others: ThreadPoolExecutor) -> None:
    def arrive() -> str:
        with capture_gate.patient_passage("arrive"):
            return "arrived"

    with capture_gate.closed(Meanwhile.REFUSE):
        arriving = others.submit(arrive)
        until(lambda: capture_gate.waiting == 1)
    assert arriving.result(timeout=30) == "arrived"


def test_a_capture_does_not_begin_in_the_middle_of_its_own_threads_operation() -> None:
    with capture_gate.passage("move"), pytest.raises(NotAllowed, match="in the middle"):
        capture_gate.closed(Meanwhile.WAIT).__enter__()
    with capture_gate.closed(Meanwhile.WAIT):
        assert capture_gate.is_closing
    assert not capture_gate.is_closing


def test_an_operation_that_fails_is_over(others: ThreadPoolExecutor) -> None:
    def fail() -> None:
        with capture_gate.passage("move"):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        others.submit(fail).result(timeout=30)
    with capture_gate.closed(Meanwhile.WAIT):
        pass


def test_a_child_that_is_forked_in_the_middle_of_an_operation_ends_it_and_can_capture() -> None:
    def act() -> None:
        with capture_gate.passage("another"):
            reserve_and_free(open_host_driver(capacity_bytes=MIB))

    with capture_gate.passage("move"):
        assert forked(act) == 0
    with capture_gate.closed(Meanwhile.WAIT):
        pass


def test_operations_and_captures_of_many_threads_go_on_side_by_side(
    driver: HostDriver, others: ThreadPoolExecutor
) -> None:
    under_way, seen = [0], list[int]()

    def operate() -> None:
        for _ in range(300):
            with capture_gate.passage("move"):
                under_way.append(1)
                reserve_and_free(driver)
                under_way.pop()

    def capture() -> None:
        for _ in range(300):
            with capture_gate.closed(Meanwhile.WAIT):
                seen.append(len(under_way))

    for future in [others.submit(act) for act in (operate, operate, capture, capture)]:
        future.result(timeout=60)
    assert set(seen) == {1}
