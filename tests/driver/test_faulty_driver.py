"""The driver that fails on demand: a driver like any other, until a plan says so."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator

import pytest

from kvcluster.driver.host import open_host_driver
from kvcluster.driver.protocol import Driver
from kvcluster.errors import DriverError
from kvcluster.testing.driver_contract import DriverContract
from kvcluster.testing.faulty_driver import FaultyDriver, Plan, failing, failing_every, failing_named, failing_then

PAGE = mmap.PAGESIZE


def _open() -> FaultyDriver:
    return FaultyDriver(open_host_driver(granule_bytes=PAGE, capacity_bytes=64 * PAGE))


@pytest.fixture
def open_driver() -> Callable[[], Driver]:
    return _open


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
