"""The host driver against a plain dictionary."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import settings

from kvcluster.driver.host import open_host_driver
from kvcluster.driver.protocol import Driver
from tests.driver.driver_model import CAPACITY, DriverModel
from tests.examples import examples

PAGE = mmap.PAGESIZE


@contextmanager
def _opened() -> Iterator[Driver]:
    driver = open_host_driver(granule_bytes=PAGE, capacity_bytes=CAPACITY * PAGE)
    yield driver
    driver.close()


class HostModel(DriverModel):
    opened = _opened


TestHostModel = HostModel.TestCase
TestHostModel.settings = settings(max_examples=examples(40), stateful_step_count=40, deadline=None)
