"""What a device is made of: sizes that follow from others, and tenants that are bounded."""

from __future__ import annotations

import pytest

import kvcluster
from kvcluster.budget.quotas import Quotas
from kvcluster.driver.protocol import MemoryInfo
from kvcluster.errors import NeverFits, OutOfBudget
from kvcluster.services.device_settings import (
    MemorySettings,
    bulk_bytes_for,
    free_beside,
    pool_bytes_for,
    what_is_there,
)
from kvcluster.units import GIB, KIB, MIB

GEOMETRY = kvcluster.KvGeometry.uniform(layers=1, kv_heads=1, head_dim=512, element_bytes=4)  # 4 KiB a token


def test_the_pool_is_the_smaller_of_64_mib_and_two_percent() -> None:
    assert pool_bytes_for(100 * MIB) == 2 * MIB
    assert pool_bytes_for(100 * GIB) == 64 * MIB


@pytest.mark.parametrize(
    ("granule_bytes", "bulk_bytes"), [(64 * KIB, 16 * MIB), (2 * MIB, 16 * MIB), (16 * MIB, 0), (32 * MIB, 0)]
)
def test_a_bulk_handle_is_several_whole_granules_or_none(granule_bytes: int, bulk_bytes: int) -> None:
    assert bulk_bytes_for(granule_bytes) == bulk_bytes


@pytest.mark.parametrize(
    ("foreign_bytes", "asked_bytes", "free_bytes"),
    [(0, GIB, 30 * MIB), (20 * MIB, GIB, 50 * MIB), (20 * MIB, 10 * MIB, 40 * MIB), (90 * MIB, GIB, 80 * MIB)],
    ids=["none", "some", "more-than-was-asked", "a-prefix-of-three"],
)
def test_survivors_never_make_more_free_than_there_is_or_was_asked(
    foreign_bytes: int, asked_bytes: int, free_bytes: int
) -> None:
    info = MemoryInfo(total_bytes=80 * MIB, free_bytes=30 * MIB, held_bytes=0)
    assert free_beside(info, foreign_bytes=foreign_bytes, asked_bytes=asked_bytes) == free_bytes


@pytest.mark.parametrize(
    ("free_bytes", "utilization", "capacity_bytes"),
    [(GIB, 1.0, 64 * MIB), (100 * MIB, 0.5, 50 * MIB), (5 * MIB, 1, 4 * MIB)],
)
def test_a_gpus_device_is_what_was_asked_for_or_whole_granules_of_its_share_of_what_is_free(
    free_bytes: int, utilization: float, capacity_bytes: int
) -> None:
    asked = MemorySettings(64 * MIB, 2 * MIB, 0, quotas=Quotas({"acme": MIB}), bulk_bytes=16 * MIB)
    there = what_is_there(asked, device="cuda:0", free_bytes=free_bytes, utilization=utilization)
    assert (there.capacity_bytes, there.pool_bytes) == (capacity_bytes, capacity_bytes // 50)
    assert (there.granule_bytes, there.quotas, there.bulk_bytes) == (2 * MIB, asked.quotas, 16 * MIB)


def test_a_gpu_with_less_than_a_granule_free_is_refused_with_what_there_is() -> None:
    asked = MemorySettings(64 * MIB, 2 * MIB, 0)
    with pytest.raises(ValueError, match=r"^cuda:0 has 3\.0 MiB free, of which 1\.5 MiB are ours, .* end what uses it"):
        what_is_there(asked, device="cuda:0", free_bytes=3 * MIB, utilization=0.5)


def test_a_tenant_has_no_more_of_a_device_than_its_quota_and_the_others_have_the_rest() -> None:
    with kvcluster.open_device("host", memory="64KiB", granule="4KiB", quotas={"acme": "16KiB"}) as device:
        first, second = (device.open(GEOMETRY, max_tokens=4, tenant="acme") for _ in range(2))
        first.commit(3, first.grant(3))
        with pytest.raises(OutOfBudget) as refused:
            second.grant(2)
        assert (refused.value.need, refused.value.free) == (8 * KIB, 0)  # the fourth granule is the first one's to grow
        with pytest.raises(NeverFits):
            device.open(GEOMETRY, max_tokens=8, tenant="acme").grant(5)
        other = device.open(GEOMETRY, max_tokens=12)
        other.commit(12, other.grant(12))
        assert device.audit().tenants == {"acme": 12 * KIB, "": 48 * KIB}


@pytest.mark.parametrize("size", ["much", -1])
def test_a_quota_that_is_no_size_opens_nothing(size: str | int) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        kvcluster.open_device("host", quotas={"acme": size})
