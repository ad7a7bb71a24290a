"""The host driver: the contract of every driver, and what only memfd and mmap promise."""

from __future__ import annotations

import errno
import mmap
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from kvcluster.driver.host import HostDriver, descriptor_room, mapping_room, open_host_driver
from kvcluster.driver.protocol import Access, Driver, PhysicalHandle
from kvcluster.errors import DriverError
from kvcluster.testing.driver_contract import Bench, ChildDriver, DriverContract, forked
from kvcluster.transaction import Progress
from kvcluster.units import KIB, MIB

GRANULES = (mmap.PAGESIZE, 64 * KIB, 2 * MIB)


@pytest.fixture(params=GRANULES, ids=lambda granule: f"{granule // KIB}KiB")
def open_driver(request: pytest.FixtureRequest) -> Callable[[], Driver]:
    granule_bytes: int = request.param
    return lambda: open_host_driver(granule_bytes=granule_bytes, capacity_bytes=64 * granule_bytes)


@pytest.fixture
def in_child(open_driver: Callable[[], Driver]) -> ChildDriver:
    granule_bytes = open_driver().granularity_bytes
    arguments = {"granule_bytes": granule_bytes, "capacity_bytes": 64 * granule_bytes}
    return ChildDriver("kvcluster.driver.host:open_host_driver", arguments)


class TestHostDriver(DriverContract):
    def test_what_is_held_is_the_kernels_own_figure(self, bench: Bench) -> None:
        handle = bench.create(3)
        descriptor = bench.driver.export_fd(handle)
        try:
            assert os.fstat(descriptor).st_blocks * 512 == 3 * bench.granule
            assert bench.driver.memory_info().held_bytes == 3 * bench.granule
        finally:
            os.close(descriptor)

    def test_capacity_is_enforced_at_create(self, bench: Bench) -> None:
        bench.create(60)
        with pytest.raises(DriverError) as caught:
            bench.create(5)
        assert (caught.value.call, caught.value.code, caught.value.name) == ("create", errno.ENOMEM, "ENOMEM")
        bench.create(4)
        info = bench.driver.memory_info()
        assert (info.total_bytes, info.free_bytes, info.held_bytes) == (64 * bench.granule, 0, 64 * bench.granule)

    def test_released_memory_is_charged_while_it_is_mapped(self, bench: Bench) -> None:
        address, handle = bench.reserve(64), bench.create(64)
        bench.map(address, handle)
        bench.driver.release(handle)
        with pytest.raises(DriverError):
            bench.create()
        bench.driver.unmap(address, 64 * bench.granule)
        bench.create(64)

    def test_imported_memory_is_not_charged(self, bench: Bench, other: Bench) -> None:
        other.create(64)
        other.import_from(bench, bench.create(64))
        assert other.driver.memory_info().held_bytes == 64 * bench.granule

    def test_memory_of_another_size_is_not_imported(self, bench: Bench, other: Bench) -> None:
        descriptor = bench.driver.export_fd(bench.create(2))
        try:
            for size in (bench.granule, 3 * bench.granule, bench.granule + 1, 0):
                with pytest.raises(DriverError, match="EINVAL"):
                    other.driver.import_fd(descriptor, size)
        finally:
            os.close(descriptor)

    def test_a_file_that_can_shrink_is_not_imported(self, bench: Bench) -> None:
        descriptor = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, bench.granule)
            with pytest.raises(DriverError, match="EINVAL"):
                bench.driver.import_fd(descriptor, bench.granule)
        finally:
            os.close(descriptor)

    def test_what_is_no_memory_is_not_imported(self, bench: Bench, tmp_path: Path) -> None:
        with (tmp_path / "plain").open("w+b") as plain:
            plain.truncate(bench.granule)
            with pytest.raises(DriverError, match="import_fd"):
                bench.driver.import_fd(plain.fileno(), bench.granule)
            number = plain.fileno()
        with pytest.raises(DriverError, match="EBADF"):
            bench.driver.import_fd(number, bench.granule)

    def test_nobody_can_shrink_or_grow_exported_memory(self, bench: Bench) -> None:
        descriptor = bench.driver.export_fd(bench.create())
        try:
            for size in (0, 2 * bench.granule):
                with pytest.raises(PermissionError):
                    os.ftruncate(descriptor, size)
        finally:
            os.close(descriptor)

    def test_a_forked_child_has_none_of_the_memory(self, bench: Bench) -> None:
        address = bench.reserve(6)
        bench.map(address + bench.granule, bench.create(), bench.create())
        bench.map(address + 4 * bench.granule, bench.create())
        bench.driver.unmap(address + 2 * bench.granule, bench.granule)
        assert _memory_mappings(address, 6 * bench.granule) == 2

        def act() -> None:
            assert _memory_mappings(address, 6 * bench.granule) == 0

        assert forked(act) == 0

    def test_a_range_is_as_many_kernel_mappings_as_before_once_all_is_unmapped(self, bench: Bench) -> None:
        address = bench.reserve(5)
        before = _kernel_mappings(address, 5 * bench.granule)
        for first in (1, 3):
            bench.map(address + first * bench.granule, bench.create())
        assert _kernel_mappings(address, 5 * bench.granule) == before + 4
        for first in (1, 3):
            bench.driver.unmap(address + first * bench.granule, bench.granule)
        assert _kernel_mappings(address, 5 * bench.granule) == before

    def test_a_descriptor_that_reports_an_error_as_it_closes_is_given_up(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Linux has taken the descriptor away by then."""
        address, handles = bench.reserve(3), [bench.create() for _ in range(3)]
        bench.map(address, *handles)
        for handle in handles[:2]:
            bench.driver.release(handle)
        monkeypatch.setattr(os, "close", _close_and_complain)
        bench.driver.unmap(address, 3 * bench.granule)
        bench.driver.release(handles[2])
        monkeypatch.undo()
        assert bench.driver.memory_info().held_bytes == 0
        bench.create(64)

    def test_a_released_import_needs_no_descriptor_while_it_is_mapped(self, bench: Bench, other: Bench) -> None:
        here, there, handle = bench.reserve(1), other.reserve(2), bench.create()
        imported = other.import_from(bench, handle)
        bench.map(here, handle)
        other.map(there, imported, imported)
        before = len(os.listdir("/proc/self/fd"))
        other.driver.release(imported)
        assert len(os.listdir("/proc/self/fd")) == before - 1
        bench.poke(here, b"seen")
        assert other.peek(there + bench.granule, 4) == b"seen"
        with pytest.raises(DriverError):
            other.driver.release(imported)
        other.driver.unmap(there, 2 * bench.granule)
        assert len(os.listdir("/proc/self/fd")) == before - 1

    def test_a_granule_that_no_page_divides_is_refused(self) -> None:
        for wrong in (0, 1, mmap.PAGESIZE // 2, 3 * mmap.PAGESIZE, -64 * KIB):
            with pytest.raises(ValueError, match="power of two"):
                open_host_driver(granule_bytes=wrong, capacity_bytes=0)

    def test_a_negative_capacity_is_refused(self) -> None:
        with pytest.raises(ValueError, match="at least 0"):
            open_host_driver(capacity_bytes=-1)

    def test_a_refusal_says_which_rule(self, bench: Bench) -> None:
        with pytest.raises(DriverError) as caught:
            bench.driver.map(bench.reserve(1), [PhysicalHandle(0, bench.granule)], Progress())
        assert "not a handle of this driver" in str(caught.value.__cause__)
        assert (caught.value.code, caught.value.name) == (errno.EINVAL, "EINVAL")


def _kernel_mappings(address: int, size_bytes: int) -> int:
    return len(_lines(address, size_bytes))


def _memory_mappings(address: int, size_bytes: int) -> int:
    """The kernel mappings there that show memory of ours."""
    return sum("/memfd:kvcluster" in line for line in _lines(address, size_bytes))


def _lines(address: int, size_bytes: int) -> list[str]:
    """What /proc/self/maps says of this range."""
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if _meets(line, address, size_bytes)]


def _meets(line: str, address: int, size_bytes: int) -> bool:
    start, end = (int(edge, 16) for edge in line.split(maxsplit=1)[0].split("-"))
    return start < address + size_bytes and address < end


def _close_and_complain(descriptor: int, close: Callable[[int], None] = os.close) -> None:
    close(descriptor)
    raise OSError(errno.EIO, "as a file system may say")


def _everything(driver: HostDriver, times: int = 1) -> None:
    """Every act and its opposite, with gaps between the mappings."""
    granule = driver.granularity_bytes
    for _ in range(times):
        address = driver.reserve(8 * granule)
        handles = [driver.create(granule) for _ in range(3)]
        handles.append(_imported(driver, handles[0]))
        for index, handle in enumerate(handles):
            driver.map(address + 2 * index * granule, [handle], Progress())
            driver.set_access(address + 2 * index * granule, granule, Access.READ_WRITE)
        for index, handle in enumerate(handles):
            driver.unmap(address + 2 * index * granule, granule)
            driver.release(handle)
        driver.free_address(address, 8 * granule)


def _imported(driver: HostDriver, handle: PhysicalHandle) -> PhysicalHandle:
    descriptor = driver.export_fd(handle)
    try:
        return driver.import_fd(descriptor, handle.size_bytes)
    finally:
        os.close(descriptor)


def _memory_descriptors() -> set[int]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the listing's own
            if "/memfd:kvcluster" in Path(f"/proc/self/fd/{name}").readlink().as_posix():
                found.add(int(name))
    return found


@pytest.mark.parametrize("refused", [0, 1, 2])
def test_of_a_run_the_handles_before_the_one_that_the_kernel_refuses_are_mapped(refused: int) -> None:
    driver = open_host_driver(capacity_bytes=3 * 64 * KIB)
    granule, done, handles = driver.granularity_bytes, Progress(), []
    address = driver.reserve(3 * granule)
    for number in range(3):
        before = _memory_descriptors()
        handles.append(driver.create(granule))
        if number == refused:
            [descriptor] = _memory_descriptors() - before
            with Path(os.devnull).open() as no_memory:
                os.dup2(no_memory.fileno(), descriptor, inheritable=False)
    with pytest.raises(DriverError, match="ENODEV"):
        driver.map(address, handles, done)
    assert done.count == refused == driver.calls()["map"] - 1
    assert _memory_mappings(address, 3 * granule) == refused
    if refused:
        driver.unmap(address, refused * granule)
    good = [handle for number, handle in enumerate(handles) if number != refused]
    driver.map(address + granule, good, Progress())
    driver.unmap(address + granule, 2 * granule)
    for handle in handles:
        driver.release(handle)
    driver.free_address(address, 3 * granule)


def test_nothing_is_left_once_everything_is_given_back() -> None:
    driver = open_host_driver(granule_bytes=2 * MIB, capacity_bytes=16 * MIB)
    descriptors, memory_mappings = len(os.listdir("/proc/self/fd")), _memory_mappings(0, sys.maxsize)
    _everything(driver)
    driver.close()
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert _memory_mappings(0, sys.maxsize) == memory_mappings


def test_a_create_beyond_the_machines_memory_is_an_error_and_not_a_kill() -> None:
    driver = open_host_driver(capacity_bytes=1 << 60)
    with pytest.raises(DriverError, match="ENOMEM"):
        driver.create(1 << 59)
    assert "create" not in driver.calls()


def test_threads_share_a_driver() -> None:
    driver = open_host_driver(capacity_bytes=64 * MIB)
    threads = [threading.Thread(target=_everything, args=(driver, 20)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert driver.calls()["map"] == 4 * 20 * 4
    assert driver.memory_info().held_bytes == 0


def test_rooms_are_what_the_process_may_still_use() -> None:
    assert 0 < descriptor_room() < 1 << 30
    assert 0 < mapping_room() < int(Path("/proc/sys/vm/max_map_count").read_text())
