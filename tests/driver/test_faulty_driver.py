"""The driver that fails on demand: a driver like any other, until a plan says so."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator

import pytest

from kvcluster.driver.host import open_host_driver
from kvcluster.driver.protocol import Access, Driver
from kvcluster.errors import DriverError
from kvcluster.testing.driver_contract import ChildDriver, DriverContract
from kvcluster.testing.faulty_driver import (
    FaultyDriver,
    Plan,
    failing,
    failing_every,
    failing_named,
    failing_then,
    never,
)
from kvcluster.transaction import Progress

PAGE = mmap.PAGESIZE


def _open() -> FaultyDriver:
    return FaultyDriver(open_host_driver(granule_bytes=PAGE, capacity_bytes=64 * PAGE))


@pytest.fixture
def open_driver() -> Callable[[], Driver]:
    return _open


@pytest.fixture
def in_child() -> ChildDriver:
    return ChildDriver("kvcluster.driver.host:open_host_driver", {"granule_bytes": PAGE, "capacity_bytes": 64 * PAGE})


class TestFaultyDriverWithoutFaults(DriverContract):
    """Keeps the whole contract."""


@pytest.fixture
def faulty() -> Iterator[FaultyDriver]:
    driver = _open()
    yield driver
    driver.close()


def _failures(driver: FaultyDriver, plan: Plan, calls: str) -> str:
    """Makes the calls, s for synchronize and r for a reserve that is freed again; F for each that failed."""
    driver.follow(plan)
    outcomes = ""
    for call in calls:
        try:
            driver.synchronize() if call == "s" else driver.free_address(driver.reserve(PAGE), PAGE)
        except DriverError:
            outcomes += "F"
        else:
            outcomes += "."
    return outcomes


@pytest.mark.parametrize(
    ("plan", "outcomes"),
    [
        pytest.param(failing(2), ".F..", id="the second"),
        pytest.param(failing(1, 4), "F..F", id="two"),
        pytest.param(failing_then(1, 2), "F.F.", id="one and the second after it"),
        pytest.param(failing_named("synchronize", 3), "..F.", id="the third of a name"),
        pytest.param(failing_every("synchronize"), "FFFF", id="every one of a name"),
        pytest.param(failing_every("map", "unmap"), "....", id="other names"),
    ],
)
def test_a_plan_fails_exactly_its_calls(faulty: FaultyDriver, plan: Plan, outcomes: str) -> None:
    assert _failures(faulty, plan, "ssss") == outcomes


def test_a_name_is_counted_apart_from_other_names(faulty: FaultyDriver) -> None:
    assert _failures(faulty, failing_named("reserve", 2), "srsr") == "...F"


def test_a_plans_numbers_begin_when_it_is_set(faulty: FaultyDriver) -> None:
    assert _failures(faulty, failing(2), "ss") == ".F"
    assert _failures(faulty, failing(2), "ss") == ".F"
    assert [call.number for call in faulty.log()] == [1, 2, 3, 4]
    assert [call.number for call in faulty.since_plan()] == [3, 4]


def test_a_failed_call_does_not_reach_the_driver(faulty: FaultyDriver) -> None:
    faulty.follow(failing(1))
    with pytest.raises(DriverError) as caught:
        faulty.create(PAGE)
    assert (caught.value.call, caught.value.name, caught.value.size_bytes) == ("create", "EIO", PAGE)
    assert dict(faulty.calls()) == {}
    assert faulty.memory_info().held_bytes == 0


def test_a_fence_may_fail_when_it_is_made_and_each_time_it_is_asked(faulty: FaultyDriver) -> None:
    faulty.follow(failing_named("fence", 1))
    with pytest.raises(DriverError, match="fence"):
        faulty.fence()
    fence = faulty.fence()
    faulty.follow(failing_named("fence_done", 1, 3))
    for ask in (fence.done, fence.wait):
        with pytest.raises(DriverError, match="fence_done"):
            ask()
        ask()
    assert fence.done()


def test_a_seal_that_fails_seals_nothing(faulty: FaultyDriver) -> None:
    handle, address = faulty.create(PAGE), faulty.reserve(PAGE)
    faulty.follow(failing_every("seal"))
    with pytest.raises(DriverError, match="seal"):
        faulty.seal(handle)
    faulty.follow(never())
    faulty.map(address, [handle], Progress())
    faulty.set_access(address, PAGE, Access.READ_WRITE)
    faulty.unmap(address, PAGE)
    faulty.seal(handle)
    faulty.release(handle)
    faulty.free_address(address, PAGE)


@pytest.mark.parametrize("failing_map", [1, 2, 3])
def test_of_a_run_the_handles_before_the_one_that_fails_are_mapped(faulty: FaultyDriver, failing_map: int) -> None:
    address, handles, done = faulty.reserve(3 * PAGE), [faulty.create(PAGE) for _ in range(3)], Progress()
    faulty.follow(failing_named("map", failing_map))
    with pytest.raises(DriverError) as caught:
        faulty.map(address, handles, done)
    mapped_bytes = (failing_map - 1) * PAGE
    assert (caught.value.address, caught.value.size_bytes) == (address + mapped_bytes, PAGE)
    assert done.count == failing_map - 1 == faulty.calls().get("map", 0)
    assert [(call.name, call.failed) for call in faulty.since_plan()] == [("map", False)] * done.count + [("map", True)]
    if mapped_bytes:
        faulty.unmap(address, mapped_bytes)
    for handle in handles:
        faulty.release(handle)
    faulty.free_address(address, 3 * PAGE)


def test_whose_memory_it_is_the_wrapped_driver_says(faulty: FaultyDriver) -> None:
    assert faulty.is_host_memory is faulty.inner.is_host_memory is True


def test_the_log_has_every_call_in_order(faulty: FaultyDriver) -> None:
    address = faulty.reserve(2 * PAGE)
    faulty.follow(failing(1))
    with pytest.raises(DriverError):
        faulty.free_address(address, 2 * PAGE)
    faulty.free_address(address, 2 * PAGE)
    assert [(call.name, call.address, call.size_bytes, call.failed) for call in faulty.log()] == [
        ("reserve", 0, 2 * PAGE, False),
        ("free_address", address, 2 * PAGE, True),
        ("free_address", address, 2 * PAGE, False),
    ]
