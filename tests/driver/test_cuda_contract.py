"""The CUDA driver over the stand-in library: the contract of every driver."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvcluster.driver.cuda import open_cuda_driver
from kvcluster.driver.protocol import Driver
from kvcluster.testing.driver_contract import ChildDriver, DriverContract
from kvcluster.testing.stand_in_cuda import StandIn, environment


@pytest.fixture(params=["64K", "2M"])
def open_driver(request: pytest.FixtureRequest, stand_in: StandIn) -> Callable[[], Driver]:
    stand_in.set(GRANULE=request.param)
    return lambda: open_cuda_driver("cuda:1")


@pytest.fixture
def in_child(open_driver: Callable[[], Driver]) -> ChildDriver:
    granule_bytes = open_driver().granularity_bytes
    return ChildDriver(
        "kvcluster.driver.cuda:open_cuda_driver", {"device": "cuda:1"}, environment(GRANULE=granule_bytes)
    )


class TestCudaDriver(DriverContract):
    """Keeps the whole contract."""
