"""The memory of a batch: rows at equal steps in one reservation, and what a trim gives back."""

from __future__ import annotations

import itertools

import pytest
import torch

from kvcluster import KvGeometry, LocalDevice, Quarantined
from kvcluster.driver.host import open_host_driver
from kvcluster.errors import DriverError, NotAllowed
from kvcluster.geometry.layout import Layout
from kvcluster.geometry.residency import RangeMap, Shape
from kvcluster.mapping.address_range import open_ranges
from kvcluster.services.device_memory import MemorySettings
from kvcluster.services.local import open_local_device
from kvcluster.services.sequence import SequenceSpec
from kvcluster.testing.faulty_driver import FaultyDriver, failing_every, failing_named, never
from kvcluster.testing.invariants import assert_nothing_lost
from kvcluster.testing.tidy_driver import TidyDriver

GRANULE = 4096
GEOMETRY = KvGeometry.uniform(layers=2, kv_heads=1, head_dim=16, element_bytes=4)  # 16 tokens a granule
SHAPE = Shape.of(GEOMETRY, Layout.TOKEN_MAJOR, GRANULE)


def test_rows_lie_at_equal_steps_and_each_is_written_by_itself(device: LocalDevice) -> None:
    with device.open_batch(GEOMETRY, rows=3, max_tokens=64) as batch:
        batch.commit(3, 20)
        views = batch.views(torch.float32, torch.device("cpu"))
        for row in range(3):
            views.block(1, 3, 0, 20)[:, row] = float(row)
        for row, memory in enumerate(batch.memories):
            assert (memory.views(torch.float32).v[1][:, :20] == float(row)).all()
        steps = {b.address - a.address for a, b in itertools.pairwise(batch.memories)}
        assert steps == {views.pitch * 4}


def test_a_trim_gives_whole_granules_back_and_the_rest_is_as_it_was(device: LocalDevice) -> None:
    memory = device.open(GEOMETRY, max_tokens=256)
    memory.commit(200, memory.grant(200))
    rows = memory.views(torch.float32).k[0]
    rows[:] = torch.arange(float(rows.shape[1]))[:, None]
    memory.trim(40)
    assert memory.tokens == 48
    assert device.audit().committed_bytes == memory.committed_bytes == 3 * GRANULE
    assert torch.equal(memory.views(torch.float32).k[0][0, :, 0], torch.arange(48.0))
    memory.commit(200, memory.grant(200))
    assert torch.equal(memory.views(torch.float32).k[0][0, :48, 0], torch.arange(48.0))
    memory.trim(0)
    assert device.audit().committed_bytes == 0


def test_a_trim_leaves_what_is_shared(device: LocalDevice) -> None:
    memory = device.open(GEOMETRY, max_tokens=256)
    memory.commit(100, memory.grant(100))
    memory.publish(64)
    memory.trim(10)
    assert (memory.tokens, memory.shared_bytes, memory.committed_bytes) == (64, 4 * GRANULE, 0)


def test_a_trim_of_more_than_the_most_or_of_a_closed_memory_is_refused(device: LocalDevice) -> None:
    memory = device.open(GEOMETRY, max_tokens=64)
    with pytest.raises(ValueError, match="0 to 64"):
        memory.trim(65)
    memory.close()
    with pytest.raises(NotAllowed, match="closed"):
        memory.trim(1)


def test_a_trim_leaves_a_handle_that_is_needed_in_part() -> None:
    driver = open_host_driver(granule_bytes=GRANULE, capacity_bytes=64 * GRANULE)
    with open_local_device(driver, MemorySettings(64 * GRANULE, GRANULE, 0, bulk_bytes=4 * GRANULE)) as device:
        memory = device.port.memory(SequenceSpec(GEOMETRY, Layout.TOKEN_MAJOR, 256))
        memory.commit(160, memory.grant(160))  # two handles of 4 granules, and two of 1
        memory.trim(16)
        assert memory.committed_bytes == device.audit().committed_bytes == 4 * GRANULE
        memory.commit(160, memory.grant(160))
        assert memory.committed_bytes == device.audit().committed_bytes == 10 * GRANULE


def test_what_a_trim_cannot_unmap_is_charged_once_and_no_more_is_committed() -> None:
    tidy = TidyDriver(granule_bytes=GRANULE, capacity_bytes=64 * GRANULE)
    driver = FaultyDriver(tidy)
    device = open_local_device(driver, MemorySettings(64 * GRANULE, GRANULE, 0))
    memory = device.open(GEOMETRY, max_tokens=256)
    memory.commit(160, memory.grant(160))
    driver.follow(failing_every("unmap"))
    with pytest.raises(Quarantined):
        memory.trim(32)
    driver.follow(never())
    memory.trim(16)
    accounts = device.audit().accounts
    assert accounts["quarantine"] == 8 * GRANULE
    assert device.audit().committed_bytes == GRANULE
    assert memory.tokens == 16
    with pytest.raises(NotAllowed, match="takes no more commits"):
        memory.commit(160, memory.grant(160))
    device.close()
    tidy.clear()


def test_the_address_goes_back_whole_with_the_last_row() -> None:
    driver = FaultyDriver(open_host_driver(granule_bytes=GRANULE, capacity_bytes=64 * GRANULE))
    ranges = open_ranges(driver, RangeMap(SHAPE, 64), 3)
    for each in (ranges[2], ranges[0]):
        each.close()
    assert [call.name for call in driver.since_plan()] == ["reserve"]
    driver.follow(failing_named("free_address", 1))
    with pytest.raises(DriverError):
        ranges[1].close()
    ranges[1].close()
    freed = [call for call in driver.since_plan() if not call.failed]
    assert [(call.name, call.address) for call in freed] == [("free_address", ranges[0].address)]
    driver.close()


def test_no_ranges_are_refused_and_nothing_is_reserved() -> None:
    driver = FaultyDriver(open_host_driver(granule_bytes=GRANULE, capacity_bytes=64 * GRANULE))
    with pytest.raises(ValueError, match="at least 1 range"):
        open_ranges(driver, RangeMap(SHAPE, 64), 0)
    assert driver.log() == ()
    driver.close()


def test_rows_of_a_batch_are_closed_with_their_port(device: LocalDevice) -> None:
    batch = device.open_batch(GEOMETRY, rows=2, max_tokens=64)
    batch.commit(2, 20)
    for memory in batch.memories:
        memory.close()
    assert not batch.is_open
    batch.close()
    assert_nothing_lost(device)
