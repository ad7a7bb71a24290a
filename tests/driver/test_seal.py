"""Sealed memory is read and never written: by this driver's rules, and by the kernel's against every process."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import closing

import pytest

from kvcluster.driver.host import open_host_driver
from kvcluster.driver.protocol import Access, PhysicalHandle
from kvcluster.errors import DriverError
from kvcluster.testing.tidy_driver import TidyDriver
from kvcluster.transaction import Progress
from tests.driver.sealing import PAGE, SIZE, read_back, shared, written


@pytest.fixture
def owner() -> Iterator[TidyDriver]:
    owner = TidyDriver(granule_bytes=PAGE, capacity_bytes=16 * PAGE)
    yield owner
    owner.clear()


@pytest.fixture
def joiner() -> Iterator[TidyDriver]:
    """As another process would have it."""
    joiner = TidyDriver(granule_bytes=PAGE, capacity_bytes=0)
    yield joiner
    joiner.clear()


def _refused_write(driver: TidyDriver, handle: PhysicalHandle) -> DriverError:
    """That of a READ_WRITE which our own books refuse: no call."""
    address = driver.reserve(SIZE)
    driver.map(address, [handle], Progress())
    driver.set_access(address, SIZE, Access.READ)
    before = dict(driver.calls())
    with pytest.raises(DriverError) as caught:
        driver.set_access(address, SIZE, Access.READ_WRITE)
    assert driver.calls() == before
    return caught.value


def _open_mode(descriptor: int) -> int:
    return fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE


def test_sealed_memory_is_read_where_it_was_written(owner: TidyDriver) -> None:
    handle = written(owner)
    owner.seal(handle)
    assert read_back(owner, handle) == b"sealed"
    assert owner.memory_info().held_bytes == SIZE


def test_our_own_books_refuse_to_make_sealed_memory_writable(owner: TidyDriver, joiner: TidyDriver) -> None:
    handle = written(owner)
    owner.seal(handle)
    for driver, its in ((owner, handle), (joiner, shared(owner, handle, joiner))):
        refusal = _refused_write(driver, its)
        assert (refusal.call, refusal.code) == ("set_access", errno.EINVAL)
        assert "never written" in str(refusal.__cause__)


def test_one_sealed_piece_makes_a_run_unwritable_and_leaves_its_access(owner: TidyDriver) -> None:
    address, sealed, plain = owner.reserve(2 * SIZE), written(owner), written(owner)
    owner.seal(sealed)
    owner.map(address, [plain], Progress())
    owner.map(address + SIZE, [sealed], Progress())
    owner.set_access(address, 2 * SIZE, Access.READ)
    with pytest.raises(DriverError):
        owner.set_access(address, 2 * SIZE, Access.READ_WRITE)
    owner.set_access(address, SIZE, Access.READ_WRITE)
    ctypes.memmove(address, b"plain!", 6)
    assert ctypes.string_at(address + SIZE, 6) == b"sealed"


def test_sealed_memory_is_not_scrubbed(owner: TidyDriver) -> None:
    handle = written(owner)
    owner.seal(handle)
    with pytest.raises(DriverError, match="EINVAL"):
        owner.scrub(handle)
    assert "scrub" not in owner.calls()
    assert read_back(owner, handle) == b"sealed"


@pytest.mark.parametrize("access", [None, *Access])
def test_what_is_mapped_here_is_not_sealed_whatever_its_access(owner: TidyDriver, access: Access | None) -> None:
    handle, address = owner.create(SIZE), owner.reserve(SIZE)
    owner.map(address, [handle], Progress())
    if access is not None:
        owner.set_access(address, SIZE, access)
    with pytest.raises(DriverError) as caught:
        owner.seal(handle)
    assert (caught.value.call, caught.value.code) == ("seal", errno.EINVAL)
    assert "mapped here" in str(caught.value.__cause__)
    assert "seal" not in owner.calls()
    owner.set_access(address, SIZE, Access.READ_WRITE)
    ctypes.memset(address, 1, SIZE)
    owner.unmap(address, SIZE)
    owner.seal(handle)


def test_sealing_twice_changes_nothing_even_where_it_is_mapped(owner: TidyDriver) -> None:
    handle = written(owner)
    owner.seal(handle)
    assert read_back(owner, handle) == b"sealed"
    descriptors = len(os.listdir("/proc/self/fd"))
    owner.seal(handle)
    assert owner.calls()["seal"] == 1
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_seal_costs_no_descriptor(owner: TidyDriver) -> None:
    handle = owner.create(SIZE)
    before = len(os.listdir("/proc/self/fd"))
    owner.seal(handle)
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_unknown_handle_is_not_sealed(owner: TidyDriver, joiner: TidyDriver) -> None:
    handle = owner.create(SIZE)
    with pytest.raises(DriverError, match="EINVAL"):
        joiner.seal(handle)
    owner.release(handle)
    with pytest.raises(DriverError, match="EINVAL"):
        owner.seal(handle)
    assert "seal" not in {**owner.calls(), **joiner.calls()}


def test_what_is_exported_of_sealed_memory_reads_only(owner: TidyDriver) -> None:
    handle = written(owner)
    descriptor = owner.export_fd(handle)
    with closing(os.fdopen(descriptor, "r+b", buffering=0)):
        assert _open_mode(descriptor) == os.O_RDWR
    owner.seal(handle)
    descriptor = owner.export_fd(handle)
    with closing(os.fdopen(descriptor, "rb", buffering=0)):
        assert _open_mode(descriptor) == os.O_RDONLY
        assert os.pread(descriptor, 6, 0) == b"sealed"
        assert not os.get_inheritable(descriptor)


def test_an_import_by_way_of_the_old_descriptor_is_sealed_too(owner: TidyDriver, joiner: TidyDriver) -> None:
    handle = written(owner)
    descriptor = owner.export_fd(handle)
    with closing(os.fdopen(descriptor, "r+b", buffering=0)):
        owner.seal(handle)
        imported = joiner.import_fd(descriptor, SIZE)
    joiner.seal(imported)
    assert "seal" not in joiner.calls()
    assert read_back(joiner, imported) == b"sealed"
    _refused_write(joiner, imported)


def test_what_comes_in_by_a_descriptor_that_reads_only_is_never_written(owner: TidyDriver, joiner: TidyDriver) -> None:
    """Though its memory is not sealed, and its owner goes on writing."""
    handle = written(owner, b"before")
    writable = owner.export_fd(handle)
    with closing(os.fdopen(writable, "r+b", buffering=0)) as file:
        reading = os.open(f"/proc/self/fd/{writable}", os.O_RDONLY | os.O_CLOEXEC)
        with closing(os.fdopen(reading, "rb", buffering=0)):
            imported = joiner.import_fd(reading, SIZE)
        _refused_write(joiner, imported)
        with pytest.raises(DriverError, match="EINVAL"):
            joiner.scrub(imported)
        with pytest.raises(DriverError):
            joiner.seal(imported)  # which is for those that may write
        file.write(b"after!")
    assert read_back(joiner, imported) == b"after!"


def test_what_another_driver_has_sealed_is_sealed_here_by_a_seal(owner: TidyDriver, joiner: TidyDriver) -> None:
    handle = written(owner)
    imported = shared(owner, handle, joiner)
    owner.seal(handle)
    joiner.seal(imported)
    assert read_back(joiner, imported) == b"sealed"
    _refused_write(joiner, imported)


def test_an_importer_seals_for_all(owner: TidyDriver, joiner: TidyDriver) -> None:
    handle = written(owner)
    joiner.seal(shared(owner, handle, joiner))
    address = owner.reserve(SIZE)
    with pytest.raises(DriverError):
        _make_writable(owner, address, handle)


def _make_writable(driver: TidyDriver, address: int, handle: PhysicalHandle) -> None:
    """Older kernels refuse the mapping, newer ones the access."""
    driver.map(address, [handle], Progress())
    driver.set_access(address, SIZE, Access.READ_WRITE)


def test_a_mapping_of_another_driver_by_way_of_a_writable_descriptor_hinders_the_seal(
    owner: TidyDriver, joiner: TidyDriver
) -> None:
    handle = written(owner)
    address, imported = joiner.reserve(SIZE), shared(owner, handle, joiner)
    joiner.map(address, [imported], Progress())
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(DriverError) as caught:
        owner.seal(handle)
    assert (caught.value.call, caught.value.code, caught.value.name) == ("seal", errno.EBUSY, "EBUSY")
    assert caught.value.size_bytes == SIZE
    assert len(os.listdir("/proc/self/fd")) == descriptors
    here = owner.reserve(SIZE)
    _make_writable(owner, here, handle)
    ctypes.memmove(here, b"writes", 6)
    joiner.unmap(address, SIZE)
    owner.unmap(here, SIZE)
    owner.seal(handle)
    assert read_back(owner, handle) == b"writes"


def test_a_readers_mapping_hinders_no_further_seal_and_outlives_the_handle(
    owner: TidyDriver, joiner: TidyDriver
) -> None:
    handle = written(owner)
    owner.seal(handle)
    imported = shared(owner, handle, joiner)
    address = joiner.reserve(SIZE)
    joiner.map(address, [imported], Progress())
    joiner.set_access(address, SIZE, Access.READ)
    owner.release(handle)
    joiner.release(imported)
    assert owner.memory_info().held_bytes == 0
    assert ctypes.string_at(address, 6) == b"sealed"


def test_released_sealed_memory_is_free_again() -> None:
    driver = open_host_driver(granule_bytes=PAGE, capacity_bytes=SIZE)
    for _ in range(3):
        handle = driver.create(SIZE)
        driver.seal(handle)
        driver.release(handle)
    assert driver.memory_info().held_bytes == 0
    driver.close()
