"""The pool over the CUDA driver: new memory there is full of whatever was in it, and no tenant reads another's."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest

from kvcluster.driver.cuda import CudaDriver, open_cuda_driver
from kvcluster.driver.protocol import Access
from kvcluster.errors import Quarantined
from kvcluster.memory.handle import Handle, HandleState
from kvcluster.memory.pool import HandlePool
from kvcluster.testing.stand_in_cuda import fresh_stand_in
from kvcluster.transaction import Progress

GRANULE = 64 << 10
BULK = 4 * GRANULE


@pytest.fixture
def driver() -> Iterator[CudaDriver]:
    with fresh_stand_in(GRANULE=GRANULE, MEMORY=64 * GRANULE, POISON=ord("p")):
        driver = open_cuda_driver()
        yield driver
        driver.close()


def content(driver: CudaDriver, handle: Handle, write: bytes = b"") -> set[int]:
    """The bytes that occur in it; then it is filled with `write`."""
    address = driver.reserve(handle.size_bytes)
    driver.map(address, [handle.physical], Progress())
    driver.set_access(address, handle.size_bytes, Access.READ_WRITE)
    seen = set(ctypes.string_at(address, handle.size_bytes))
    if write:
        ctypes.memset(address, write[0], handle.size_bytes)
    driver.synchronize()
    driver.unmap(address, handle.size_bytes)
    driver.free_address(address, handle.size_bytes)
    return seen


@pytest.mark.parametrize("handed_over", [False, True])
def test_a_second_tenant_reads_zeros_and_the_driver_holds_what_the_pool_counts(
    driver: CudaDriver, handed_over: bool
) -> None:
    pool = HandlePool(
        driver, granule_bytes=GRANULE, bulk_bytes=BULK, capacity_bytes=8 * GRANULE, limit_bytes=8 * GRANULE
    )
    first = pool.take([GRANULE, BULK, GRANULE], tenant="a")
    for handle in first:
        content(driver, handle, b"a")
        handle.was_handed_over = handed_over
    pool.give_back(first)
    second = pool.take([BULK, GRANULE, GRANULE, GRANULE], tenant="b")
    assert [content(driver, handle) for handle in second] == [{0}] * 4
    assert set(first).isdisjoint(second) == handed_over
    assert driver.memory_info().held_bytes == pool.created_bytes <= 8 * GRANULE
    pool.give_back(second)
    pool.trim(0)
    assert driver.memory_info().held_bytes == pool.created_bytes == 0


def test_a_single_tenants_memory_costs_no_scrub(driver: CudaDriver) -> None:
    pool = HandlePool(driver, granule_bytes=GRANULE, bulk_bytes=BULK, capacity_bytes=8 * GRANULE, limit_bytes=0)
    pool.give_back(pool.take([BULK, GRANULE], tenant="a"))
    assert driver.calls().get("scrub", 0) == 0
    assert pool.created_bytes == 0


@pytest.mark.parametrize("function", ["cuCtxSynchronize", "cuMemUnmap"])
def test_memory_that_a_scrub_leaves_mapped_is_quarantined_and_another_is_taken(function: str) -> None:
    with fresh_stand_in(GRANULE=GRANULE, MEMORY=64 * GRANULE) as stand_in:
        driver = open_cuda_driver()
        pool = HandlePool(
            driver, granule_bytes=GRANULE, bulk_bytes=BULK, capacity_bytes=8 * GRANULE, limit_bytes=8 * GRANULE
        )
        pool.give_back(pool.take([GRANULE], tenant="a"))
        stand_in.fail(f"{function}@1=999")
        [taken] = pool.take([GRANULE], tenant="b")
        assert content(driver, taken) == {0}
        assert pool.drain_lost() == {"": GRANULE}
        assert pool.bytes_in(HandleState.QUARANTINED) == GRANULE
        assert driver.memory_info().held_bytes == pool.created_bytes == 2 * GRANULE
        driver.close()
        stand_in.clear()


@pytest.mark.parametrize("function", ["cuCtxSynchronize", "cuMemUnmap"])
def test_new_memory_that_a_scrub_leaves_mapped_is_quarantined_and_what_was_made_before_it_released(
    function: str,
) -> None:
    with fresh_stand_in(GRANULE=GRANULE, MEMORY=64 * GRANULE) as stand_in:
        driver = open_cuda_driver()
        pool = HandlePool(
            driver, granule_bytes=GRANULE, bulk_bytes=BULK, capacity_bytes=8 * GRANULE, limit_bytes=8 * GRANULE
        )
        pool.take([GRANULE], tenant="a")
        stand_in.fail(f"{function}@2=999")
        with pytest.raises(Quarantined) as caught:
            pool.take([GRANULE] * 3, tenant="b")
        assert sum(piece.size_bytes for piece in caught.value.residue) == GRANULE
        assert driver.memory_info().held_bytes == pool.created_bytes == 2 * GRANULE
        assert pool.drain_lost() == {"": GRANULE}
        stand_in.fail(f"{function}@1=999")
        assert pool.fill(GRANULE) is False
        assert pool.drain_lost() == {"": GRANULE}
        assert driver.memory_info().held_bytes == pool.created_bytes == 3 * GRANULE
        assert len(pool.take([GRANULE] * 5, tenant="b")) == 5
        driver.close()
        stand_in.clear()
