"""The stand-in library against the rules that CUDA's documentation states, through the unmodified bindings."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from cuda.bindings import driver as cu

from kvcluster.testing.driver_contract import forked
from kvcluster.testing.stand_in_cuda import DEFAULTS, StandIn, built, environment, fresh_stand_in, load

GRANULE = 64 << 10
READ, READ_WRITE = 1, 3
DESCRIPTOR = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


def ok(answer: tuple[Any, ...]) -> Any:
    """What a call returned beside its status, which is success."""
    status, *found = answer
    assert status.name == "CUDA_SUCCESS"
    return found[0] if len(found) == 1 else tuple(found)


def no(answer: tuple[Any, ...]) -> str:
    """The name of a status that is not success."""
    assert answer[0].name != "CUDA_SUCCESS"
    return str(answer[0].name).removeprefix("CUDA_ERROR_")


def kind(device: int = 0, *, shared: bool = True) -> Any:
    found = cu.CUmemAllocationProp()
    found.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    found.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    found.location.id = device
    if shared:
        found.requestedHandleTypes = DESCRIPTOR
    return found


def access(flags: int, device: int = 0) -> Any:
    found = cu.CUmemAccessDesc()
    found.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    found.location.id = device
    found.flags = cu.CUmemAccess_flags(flags)
    return found


@pytest.fixture
def address(stand_in: StandIn) -> Iterator[int]:
    """Eight granules, with device 0's context current."""
    ok(cu.cuInit(0))
    context = ok(cu.cuDevicePrimaryCtxRetain(0))
    ok(cu.cuCtxSetCurrent(context))
    found = int(ok(cu.cuMemAddressReserve(8 * GRANULE, 0, 0, 0)))
    yield found
    ok(cu.cuMemAddressFree(found, 8 * GRANULE))
    ok(cu.cuDevicePrimaryCtxRelease(0))


@pytest.fixture
def handle(address: int) -> Iterator[int]:
    """Two granules of memory."""
    found = int(ok(cu.cuMemCreate(2 * GRANULE, kind(), 0)))
    yield found
    cu.cuMemRelease(found)


class TestMemory:
    def test_a_handle_is_mapped_whole_where_nothing_is(self, address: int, handle: int) -> None:
        assert no(cu.cuMemMap(address, 2 * GRANULE, GRANULE, handle, 0)) == "INVALID_VALUE"  # an offset
        assert no(cu.cuMemMap(address, GRANULE, 0, handle, 0)) == "INVALID_VALUE"  # a part of it
        assert no(cu.cuMemMap(address + 4096, 2 * GRANULE, 0, handle, 0)) == "INVALID_VALUE"
        assert no(cu.cuMemMap(address + 7 * GRANULE, 2 * GRANULE, 0, handle, 0)) == "INVALID_VALUE"
        assert no(cu.cuMemMap(address - 64 * GRANULE, 2 * GRANULE, 0, handle, 0)) == "INVALID_VALUE"
        assert no(cu.cuMemMap(address, 2 * GRANULE, 0, handle + 99, 0)) == "INVALID_VALUE"
        ok(cu.cuMemMap(address + GRANULE, 2 * GRANULE, 0, handle, 0))
        for granule in (0, 1, 2):
            assert no(cu.cuMemMap(address + granule * GRANULE, 2 * GRANULE, 0, handle, 0)) == "INVALID_VALUE"
        ok(cu.cuMemUnmap(address + GRANULE, 2 * GRANULE))

    def test_unmapping_and_access_take_whole_mappings(self, address: int, handle: int) -> None:
        ok(cu.cuMemMap(address, 2 * GRANULE, 0, handle, 0))
        for start, size in ((address, GRANULE), (address + GRANULE, GRANULE), (address, 3 * GRANULE), (address, 0)):
            assert no(cu.cuMemUnmap(start, size)) == "INVALID_VALUE"
            assert no(cu.cuMemSetAccess(start, size, [access(READ)], 1)) == "INVALID_VALUE"
        assert no(cu.cuMemSetAccess(address, 2 * GRANULE, [], 0)) == "INVALID_VALUE"
        assert no(cu.cuMemSetAccess(address, 2 * GRANULE, [access(READ, 5)], 1)) == "INVALID_DEVICE"
        ok(cu.cuMemUnmap(address, 2 * GRANULE))

    def test_a_range_is_freed_exactly_and_empty(self, address: int, handle: int) -> None:
        ok(cu.cuMemMap(address, 2 * GRANULE, 0, handle, 0))
        assert no(cu.cuMemAddressFree(address, 8 * GRANULE)) == "INVALID_VALUE"
        ok(cu.cuMemUnmap(address, 2 * GRANULE))
        assert no(cu.cuMemAddressFree(address, 4 * GRANULE)) == "INVALID_VALUE"
        assert no(cu.cuMemAddressFree(address + GRANULE, 7 * GRANULE)) == "INVALID_VALUE"

    @pytest.mark.parametrize("size", [0, GRANULE + 4096, GRANULE // 2])
    def test_sizes_are_multiples_of_the_granularity(self, address: int, size: int) -> None:
        assert no(cu.cuMemCreate(size, kind(), 0)) == "INVALID_VALUE"
        assert no(cu.cuMemAddressReserve(size, 0, 0, 0)) == "INVALID_VALUE"

    def test_memory_lives_until_the_last_handle_and_mapping_are_gone(
        self, stand_in: StandIn, address: int, handle: int
    ) -> None:
        ok(cu.cuMemMap(address, 2 * GRANULE, 0, handle, 0))
        ok(cu.cuMemRelease(handle))
        assert no(cu.cuMemRelease(handle)) == "INVALID_VALUE"
        assert stand_in.alive("memories") == 1
        ok(cu.cuMemUnmap(address, 2 * GRANULE))
        assert stand_in.alive("memories") == 0

    def test_a_copy_keeps_to_what_the_device_may_do(self, address: int, handle: int) -> None:
        ok(cu.cuMemMap(address, 2 * GRANULE, 0, handle, 0))
        assert no(cu.cuMemcpyHtoD(address, b"x", 1)) == "INVALID_VALUE"
        ok(cu.cuMemSetAccess(address, 2 * GRANULE, [access(READ_WRITE)], 1))
        ok(cu.cuMemcpyHtoD(address, b"abc", 3))
        ok(cu.cuMemcpyDtoD(address + GRANULE, address, 3))
        ok(cu.cuMemSetAccess(address, 2 * GRANULE, [access(READ)], 1))
        assert no(cu.cuMemsetD8(address, 0, 1)) == "INVALID_VALUE"
        found = bytearray(3)
        ok(cu.cuMemcpyDtoH(found, address + GRANULE, 3))
        assert found == b"abc"
        assert int(ok(cu.cuMemGetAccess(access(READ).location, address))) == READ
        ok(cu.cuMemUnmap(address, 2 * GRANULE))

    def test_a_device_gives_as_much_as_it_has_and_the_other_does_not_feel_it(
        self, stand_in: StandIn, address: int
    ) -> None:
        stand_in.set(MEMORY=4 * GRANULE)
        first = ok(cu.cuMemCreate(4 * GRANULE, kind(1), 0))
        assert no(cu.cuMemCreate(GRANULE, kind(1), 0)) == "OUT_OF_MEMORY"
        second = ok(cu.cuMemCreate(GRANULE, kind(0), 0))
        assert ok(cu.cuMemGetInfo()) == (3 * GRANULE, 4 * GRANULE)
        ok(cu.cuMemRelease(first))
        ok(cu.cuMemRelease(second))

    def test_only_memory_that_was_created_for_it_is_exported(self, address: int) -> None:
        plain = ok(cu.cuMemCreate(GRANULE, kind(shared=False), 0))
        assert no(cu.cuMemExportToShareableHandle(plain, DESCRIPTOR, 0)) == "INVALID_VALUE"
        ok(cu.cuMemRelease(plain))

    def test_only_its_own_memory_is_imported(self, address: int) -> None:
        reading, writing = os.pipe()
        assert no(cu.cuMemImportFromShareableHandle(reading, DESCRIPTOR)) == "INVALID_VALUE"
        os.close(reading)
        os.close(writing)

    def test_new_memory_is_full_of_what_it_is_told(self, stand_in: StandIn, address: int) -> None:
        stand_in.set(POISON=0xAB)
        handle = ok(cu.cuMemCreate(GRANULE, kind(), 0))
        ok(cu.cuMemMap(address, GRANULE, 0, handle, 0))
        ok(cu.cuMemSetAccess(address, GRANULE, [access(READ)], 1))
        found = bytearray(GRANULE)
        ok(cu.cuMemcpyDtoH(found, address, GRANULE))
        assert set(found) == {0xAB}
        ok(cu.cuMemUnmap(address, GRANULE))
        ok(cu.cuMemRelease(handle))

    def test_a_call_without_a_context_is_refused(self, address: int, handle: int) -> None:
        before = ok(cu.cuCtxGetCurrent())
        ok(cu.cuCtxSetCurrent(0))
        assert no(cu.cuMemCreate(GRANULE, kind(), 0)) == "INVALID_CONTEXT"
        assert no(cu.cuMemMap(address, 2 * GRANULE, 0, handle, 0)) == "INVALID_CONTEXT"
        ok(cu.cuCtxSetCurrent(before))

    def test_a_pointers_memory_type_is_known_where_something_is_mapped(self, address: int, handle: int) -> None:
        memory_type = cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        assert no(cu.cuPointerGetAttribute(memory_type, address)) == "INVALID_VALUE"
        ok(cu.cuMemMap(address, 2 * GRANULE, 0, handle, 0))
        assert int(ok(cu.cuPointerGetAttribute(memory_type, address))) == int(cu.CUmemorytype.CU_MEMORYTYPE_HOST)
        ok(cu.cuMemUnmap(address, 2 * GRANULE))


class TestControls:
    def test_a_rule_counts_calls_from_when_it_was_set(self, stand_in: StandIn, address: int) -> None:
        for _ in range(2):
            stand_in.fail("cuCtxSynchronize@2=719;cuMemGetInfo@1-2=1")
            assert [cu.cuCtxSynchronize()[0].value for _ in range(3)] == [0, 719, 0]
            assert [cu.cuMemGetInfo()[0].value for _ in range(3)] == [1, 1, 0]
        stand_in.fail("*@3+=999")
        assert [cu.cuCtxSynchronize()[0].value for _ in range(4)] == [0, 0, 999, 999]
        stand_in.fail("")

    def test_calls_are_counted_by_name_and_together(self, stand_in: StandIn, address: int) -> None:
        before, all_before = stand_in.calls("cuCtxSynchronize"), stand_in.calls()
        ok(cu.cuCtxSynchronize())
        ok(cu.cuMemGetInfo())
        assert (stand_in.calls("cuCtxSynchronize") - before, stand_in.calls() - all_before) == (1, 2)

    def test_a_setting_that_there_is_not_is_a_value_error(self, stand_in: StandIn) -> None:
        with pytest.raises(ValueError, match="COLOUR"):
            stand_in.set(COLOUR="red")

    def test_what_a_block_leaves_is_found_and_cleared(self) -> None:
        def leave() -> None:
            with fresh_stand_in():
                ok(cu.cuInit(0))
                ok(cu.cuCtxSetCurrent(ok(cu.cuDevicePrimaryCtxRetain(0))))
                ok(cu.cuMemCreate(GRANULE, kind(), 0))
                ok(cu.cuDevicePrimaryCtxRelease(0))

        with pytest.raises(AssertionError, match="'memories': 1"):
            leave()
        assert load().memory_alive() == {}

    def test_events_wait_for_the_work_before_them_in_their_stream(self, stand_in: StandIn, address: int) -> None:
        blocking, own = ok(cu.cuStreamCreate(0)), ok(cu.cuStreamCreate(1))
        work = stand_in.begin_work(int(blocking))
        states = []
        for stream in (0, blocking, own):
            event = ok(cu.cuEventCreate(2))
            ok(cu.cuEventRecord(event, stream))
            states.append(cu.cuEventQuery(event)[0].name.removeprefix("CUDA_"))
            ok(cu.cuEventDestroy(event))
        assert states == ["ERROR_NOT_READY", "ERROR_NOT_READY", "SUCCESS"]
        stand_in.end_work(work)
        ok(cu.cuStreamDestroy(blocking))
        ok(cu.cuStreamDestroy(own))

    def test_a_forked_child_has_no_cuda(self, address: int) -> None:
        def act() -> None:
            assert no(cu.cuInit(0)) == no(cu.cuDeviceGetCount()) == "NOT_INITIALIZED"

        assert forked(act) == 0

    def test_it_is_built_once_and_outside_the_package(self) -> None:
        library = built() / "libcuda.so.1"
        before = library.stat().st_mtime_ns
        assert (built() / "libcuda.so.1").stat().st_mtime_ns == before
        assert "kvcluster/testing" not in str(library)

    def test_the_defaults_are_those_of_the_library(self, stand_in: StandIn) -> None:
        ok(cu.cuInit(0))
        assert ok(cu.cuDeviceTotalMem(0)) == int(DEFAULTS["MEMORY"].removesuffix("M")) << 20


LOOK_UP = """
import ctypes
library = ctypes.CDLL("libcuda.so.1")
ours = {12090: library.cuCtxSynchronize, 13000: library.cuCtxSynchronize_v2}
asked = ("cuCtxSynchronize", 12090), ("cuCtxSynchronize", 13000), ("cuMemCreate", 10010), ("cuNone", 13000)
for name, version in asked:
    found, status, flags = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_uint64(0)
    parameters = ctypes.byref(found), version, flags, ctypes.byref(status)
    code = library.cuGetProcAddress_v2(name.encode(), *parameters)
    wanted = ours.get(version)
    print(code, status.value, wanted is not None and found.value == ctypes.cast(wanted, ctypes.c_void_p).value)
"""


@pytest.mark.parametrize(
    ("version", "answers"),
    [
        (13000, ["0 0 True", "0 0 True", "500 2 False", "500 1 False"]),
        (12090, ["0 0 True", "0 0 False", "500 2 False", "500 1 False"]),
    ],
)
def test_an_entry_point_is_found_by_name_and_version(version: int, answers: list[str]) -> None:
    command = [sys.executable, "-c", LOOK_UP]
    done = subprocess.run(command, env=os.environ | environment(VERSION=version), capture_output=True, text=True)
    assert done.stdout.splitlines() == answers, done.stderr


def test_a_second_library_is_refused_once_one_is_loaded(stand_in: StandIn) -> None:
    assert load() is stand_in
