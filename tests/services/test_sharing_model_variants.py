"""The model of sharing with handles of several granules, and on a stand-in's GPU."""

from __future__ import annotations

from hypothesis import settings

from tests.examples import examples
from tests.services.gpu_model import OnGpu
from tests.services.test_sharing_model import SharingModel


class BulkSharingModel(SharingModel):
    """With handles of two granules, which are shared and given back whole or not at all."""

    bulk = 2


TestBulkSharingModel = BulkSharingModel.TestCase
TestBulkSharingModel.settings = settings(max_examples=examples(30), stateful_step_count=60, deadline=None)


class GpuSharingModel(OnGpu, SharingModel):
    """The same on a stand-in's GPU."""


TestGpuSharingModel = GpuSharingModel.TestCase
TestGpuSharingModel.settings = settings(max_examples=examples(30), stateful_step_count=60, deadline=None)
