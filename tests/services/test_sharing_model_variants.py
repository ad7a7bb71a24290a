"""The model of sharing with handles of several granules, and on a stand-in's GPU."""

from __future__ import annotations

from hypothesis import settings

from kvcluster.testing.stand_in_cuda import DEFAULTS, load
from tests.services.device_world import GRANULE
from tests.services.test_sharing_model import SharingModel


class BulkSharingModel(SharingModel):
    """With handles of two granules, which are shared and given back whole or not at all."""

    bulk = 2


TestBulkSharingModel = BulkSharingModel.TestCase
TestBulkSharingModel.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


class GpuSharingModel(SharingModel):
    """The same on a stand-in's GPU, which itself counts what is left on it."""

    gpu = "cuda:0"

    def __init__(self) -> None:
        load().set(GRANULE=GRANULE)
        super().__init__()

    def teardown(self) -> None:
        try:
            super().teardown()
            assert load().memory_alive() == {}
        finally:
            load().set(**DEFAULTS)


TestGpuSharingModel = GpuSharingModel.TestCase
TestGpuSharingModel.settings = settings(max_examples=50, stateful_step_count=60, deadline=None)
