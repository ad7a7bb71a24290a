"""What the tests of the gate have in common."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from kvcluster.driver.gate import Meanwhile
from kvcluster.driver.host import HostDriver
from kvcluster.errors import DriverError
from kvcluster.units import KIB

GRANULE = 64 * KIB
BOTH = pytest.mark.parametrize("meanwhile", list(Meanwhile))


def until(holds: Callable[[], bool]) -> None:
    while not holds():
        os.sched_yield()


def reserve_and_free(driver: HostDriver) -> None:
    driver.free_address(driver.reserve(GRANULE), GRANULE)


def refusal_of(act: Callable[[], object]) -> DriverError:
    with pytest.raises(DriverError) as caught:
        act()
    return caught.value
