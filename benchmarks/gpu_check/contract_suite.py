"""The driver contract on the GPU that `contract.OnGpu` names; run by it alone."""

from __future__ import annotations

from kvcluster.testing.driver_contract import DriverContract


class TestCudaDriver(DriverContract):
    """Keeps the whole contract."""
