"""What a growth asks of the hardware while the pool has what it needs: maps and their access, and no create."""

from __future__ import annotations

from collections import Counter

import pytest

from kvcluster.driver.host import open_host_driver
from kvcluster.geometry.model import KvGeometry
from kvcluster.services.device_memory import MemorySettings
from kvcluster.services.local import LocalDevice, open_local_device
from kvcluster.units import KIB

GRANULE = 64 * KIB
GEOMETRY = KvGeometry.uniform(layers=1, kv_heads=1, head_dim=512, element_bytes=2)  # 32 tokens a granule
TOKENS = 32


def _device(granules: int, *, pooled: int) -> LocalDevice:
    driver = open_host_driver(granule_bytes=GRANULE, capacity_bytes=granules * GRANULE)
    return open_local_device(driver, MemorySettings(granules * GRANULE, GRANULE, pooled * GRANULE))


@pytest.mark.parametrize("granules", [1, 16, 64])
def test_with_a_full_pool_a_growth_makes_no_create(granules: int) -> None:
    with _device(2 * granules, pooled=granules) as device:
        memory = device.open(GEOMETRY, max_tokens=2 * granules * TOKENS)
        memory.commit(granules * TOKENS, memory.grant(granules * TOKENS))
        memory.release()
        before = Counter(device.driver.calls())
        for count in range(1, granules + 1):
            memory.commit(count * TOKENS, memory.grant(count * TOKENS))
        calls = Counter(device.driver.calls()) - before
        assert calls == {"map": granules, "set_access": granules}
        device.audit()


def test_a_release_of_one_run_is_one_unmap() -> None:
    with _device(32, pooled=16) as device:
        memory = device.open(GEOMETRY, max_tokens=16 * TOKENS)
        memory.commit(16 * TOKENS, memory.grant(16 * TOKENS))
        before = Counter(device.driver.calls())
        memory.release()
        assert (Counter(device.driver.calls()) - before) == {"unmap": 1, "synchronize": 1}
