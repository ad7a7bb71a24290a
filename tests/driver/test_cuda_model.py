"""The CUDA driver, over the stand-in library, against a plain dictionary."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import settings

from kvcluster.driver.cuda import open_cuda_driver
from kvcluster.driver.protocol import Driver
from kvcluster.testing.stand_in_cuda import fresh_stand_in
from tests.driver.driver_model import CAPACITY, DriverModel
from tests.examples import examples

GRANULE = 4 << 10


@contextmanager
def _opened() -> Iterator[Driver]:
    with fresh_stand_in(GRANULE=GRANULE, MEMORY=CAPACITY * GRANULE):
        driver = open_cuda_driver()
        yield driver
        driver.close()


class CudaModel(DriverModel):
    opened = _opened


TestCudaModel = CudaModel.TestCase
TestCudaModel.settings = settings(max_examples=examples(40), stateful_step_count=40, deadline=None)
