"""The CUDA driver where CUDA says no: each call's status, and contexts."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable

import pytest
from cuda.bindings import driver as cu

from kvcluster.driver.cuda import open_cuda_driver
from kvcluster.driver.protocol import Driver
from kvcluster.errors import DriverError, LimitReached, Quarantined
from kvcluster.testing.driver_contract import Bench
from kvcluster.testing.driver_contract.refusals import VERBS, RefusalContract, Scene
from kvcluster.testing.stand_in_cuda import StandIn
from kvcluster.transaction import Progress

FUNCTIONS = [
    ("reserve", "cuMemAddressReserve"),
    ("create", "cuMemCreate"),
    ("map", "cuMemMap"),
    ("set_access", "cuMemSetAccess"),
    ("unmap", "cuMemUnmap"),
    ("release", "cuMemRelease"),
    ("free_address", "cuMemAddressFree"),
    ("export_fd", "cuMemExportToShareableHandle"),
    ("import_fd", "cuMemImportFromShareableHandle"),
    ("synchronize", "cuCtxSynchronize"),
    ("fence", "cuEventCreate"),
    ("fence", "cuEventRecord"),
    ("memory_info", "cuMemGetInfo"),
    ("scrub", "cuMemAddressReserve"),
    ("scrub", "cuMemMap"),
    ("scrub", "cuMemSetAccess"),
    ("scrub", "cuMemsetD8"),
]
CODES = {
    1: "CUDA_ERROR_INVALID_VALUE",
    2: "CUDA_ERROR_OUT_OF_MEMORY",
    304: "CUDA_ERROR_OPERATING_SYSTEM",
    700: "CUDA_ERROR_ILLEGAL_ADDRESS",
    800: "CUDA_ERROR_NOT_PERMITTED",
    999: "CUDA_ERROR_UNKNOWN",
}


@pytest.fixture
def open_driver(stand_in: StandIn) -> Callable[[], Driver]:
    return lambda: open_cuda_driver("cuda:0")


def _picture(stand_in: StandIn, bench: Bench) -> tuple[object, ...]:
    return stand_in.memory_alive(), bench.driver.memory_info(), len(os.listdir("/proc/self/fd"))


class TestFailingCalls(RefusalContract):
    """Keeps the contract's refusals, and these."""

    @pytest.mark.parametrize("code", CODES)
    @pytest.mark.parametrize(("verb", "function"), FUNCTIONS)
    def test_a_call_that_fails_is_told_as_it_was_and_changes_nothing(
        self, stand_in: StandIn, scene: Scene, verb: str, function: str, code: int
    ) -> None:
        before = _picture(stand_in, scene.bench)
        stand_in.fail(f"{function}@1={code}")
        with pytest.raises((DriverError, LimitReached)) as caught:
            VERBS[verb](scene)
        stand_in.fail("")
        assert _picture(stand_in, scene.bench) == before
        if isinstance(caught.value, DriverError):
            assert (caught.value.call, caught.value.code, caught.value.name) == (verb, code, CODES[code])
        else:
            assert (verb, function, code) == ("reserve", "cuMemAddressReserve", 2)
        VERBS[verb](scene)

    def test_an_import_is_good_where_cuda_does_not_say_whose_it_is(self, stand_in: StandIn, scene: Scene) -> None:
        stand_in.fail("cuMemGetAllocationPropertiesFromHandle@1=1")
        VERBS["import_fd"](scene)

    def test_an_error_names_the_address_and_the_size(self, stand_in: StandIn, scene: Scene) -> None:
        stand_in.fail("cuMemMap@1=999")
        with pytest.raises(DriverError) as caught:
            VERBS["map"](scene)
        assert (caught.value.address, caught.value.size_bytes) == (scene.vacant, scene.bench.granule)

    @pytest.mark.parametrize("failing", [1, 2, 3])
    def test_of_a_run_the_handles_before_the_one_that_fails_are_mapped(
        self, stand_in: StandIn, bench: Bench, failing: int
    ) -> None:
        address, handles, done = bench.reserve(3), [bench.create() for _ in range(3)], Progress()
        stand_in.fail(f"cuMemMap@{failing}=999")
        with pytest.raises(DriverError, match="map of 196608 bytes"):
            bench.driver.map(address, handles, done)
        stand_in.fail("")
        assert done.count == failing - 1 == stand_in.alive("mappings")
        if done.count:
            bench.driver.unmap(address, done.count * bench.granule)
        bench.map(address, *handles)

    def test_address_space_has_a_limit_of_its_own(self, stand_in: StandIn, bench: Bench) -> None:
        stand_in.fail("cuMemAddressReserve@1=2")
        with pytest.raises(LimitReached) as caught:
            bench.reserve(3)
        assert (caught.value.limit, caught.value.need) == ("bytes of address", 3 * bench.granule)

    def test_a_status_without_a_name_is_unknown(self, stand_in: StandIn, bench: Bench) -> None:
        stand_in.fail("cuMemCreate@1=12345")
        with pytest.raises(DriverError, match="CUDA_ERROR_UNKNOWN"):
            bench.create()

    def test_a_context_that_cannot_be_bound_is_an_error_of_the_call(self, stand_in: StandIn, bench: Bench) -> None:
        stand_in.fail("cuCtxGetCurrent@1=201")
        with pytest.raises(DriverError) as caught:
            bench.create()
        assert (caught.value.call, caught.value.name) == ("create", "CUDA_ERROR_INVALID_CONTEXT")

    @pytest.mark.parametrize("function", ["cuCtxSynchronize", "cuMemUnmap"])
    def test_a_scrub_that_may_still_be_writing_stays_mapped_and_held(
        self, stand_in: StandIn, bench: Bench, function: str
    ) -> None:
        handle = bench.create()
        stand_in.fail(f"{function}@1=719")
        with pytest.raises(Quarantined) as caught:
            bench.driver.scrub(handle)
        assert str(caught.value.__cause__) == "scrub of 65536 bytes at 0x0 failed: CUDA_ERROR_LAUNCH_FAILED (719)"
        assert sum(piece.size_bytes for piece in caught.value.residue) == bench.granule
        bench.driver.release(handle)
        assert bench.driver.memory_info().held_bytes == bench.granule
        assert stand_in.memory_alive() == {"memories": 1, "mappings": 1, "reservations": 1}
        stand_in.clear()

    def test_what_failed_first_is_told_where_the_undo_of_a_scrub_fails_too(
        self, stand_in: StandIn, bench: Bench
    ) -> None:
        handle = bench.create()
        stand_in.fail("cuMemsetD8@1=700;cuMemUnmap@1=999")
        with pytest.raises(Quarantined) as caught:
            bench.driver.scrub(handle)
        assert isinstance(caught.value.__cause__, DriverError)
        assert caught.value.__cause__.name == "CUDA_ERROR_ILLEGAL_ADDRESS"
        stand_in.fail("")
        bench.driver.release(handle)
        stand_in.clear()

    @pytest.mark.parametrize("function", ["cuMemMap", "cuMemSetAccess", "cuMemsetD8"])
    def test_an_address_that_a_failed_scrub_could_not_free_hides_no_failure_and_holds_no_memory(
        self, stand_in: StandIn, bench: Bench, function: str
    ) -> None:
        handle = bench.create()
        stand_in.fail(f"{function}@1=700;cuMemAddressFree@1=999")
        with pytest.raises(DriverError, match="ILLEGAL_ADDRESS"):
            bench.driver.scrub(handle)
        stand_in.fail("")
        bench.driver.release(handle)
        assert bench.driver.memory_info().held_bytes == 0
        assert stand_in.memory_alive() == {"reservations": 1}
        stand_in.clear()


class TestContexts:
    def test_a_thread_that_never_called_cuda_may_call_the_driver(self, stand_in: StandIn) -> None:
        driver = open_cuda_driver()
        thread = threading.Thread(target=lambda: driver.release(driver.create(driver.granularity_bytes)))
        thread.start()
        thread.join()
        assert (driver.calls()["release"], driver.memory_info().held_bytes) == (1, 0)

    def test_a_threads_own_context_is_put_back(self, stand_in: StandIn) -> None:
        first, second = open_cuda_driver("cuda:0"), open_cuda_driver("cuda:1")
        cu.cuCtxSetCurrent(0)
        assert first.memory_info().held_bytes == 0
        mine = int(cu.cuCtxGetCurrent()[1])
        second.release(second.create(second.granularity_bytes))
        assert int(cu.cuCtxGetCurrent()[1]) == mine

    def test_a_device_has_one_context_however_many_drivers_there_are(self, stand_in: StandIn) -> None:
        open_cuda_driver().close()
        before = stand_in.alive("contexts")
        drivers = [open_cuda_driver() for _ in range(3)]
        for driver in drivers:
            driver.close()
        assert stand_in.alive("contexts") == before

    def test_a_driver_that_is_dropped_calls_nothing(self, stand_in: StandIn) -> None:
        driver = open_cuda_driver()
        driver.map(driver.reserve(driver.granularity_bytes), [driver.create(driver.granularity_bytes)], Progress())
        fence = driver.fence()
        before = stand_in.calls()
        del driver, fence
        gc.collect()
        assert stand_in.calls() == before
        stand_in.clear()
