"""GPUs by their names, what each lacks, and a driver that cannot be opened."""

from __future__ import annotations

import os

import pytest

from kvcluster.driver.cuda import cuda_devices, cuda_support, open_cuda_driver
from kvcluster.driver.protocol import Access
from kvcluster.errors import DeviceMissing, DriverError
from kvcluster.testing.driver_contract import Bench, forked
from kvcluster.testing.stand_in_cuda import UUIDS, StandIn


class TestDevices:
    def test_devices_have_the_names_that_cuda_gives_them(self, stand_in: StandIn) -> None:
        found = [(device.ordinal, device.uuid, device.name, device.total_bytes) for device in cuda_devices()]
        assert found == [(n, UUIDS[n], f"Stand-in {n}", 256 << 20) for n in range(2)]

    @pytest.mark.parametrize("name", ["cuda:1", UUIDS[1], UUIDS[1].upper()])
    def test_a_device_is_found_by_its_number_and_by_its_uuid(self, stand_in: StandIn, name: str) -> None:
        driver = open_cuda_driver(name)
        handle = driver.create(driver.granularity_bytes)
        descriptor = driver.export_fd(handle)
        try:
            assert os.readlink(f"/proc/self/fd/{descriptor}").startswith("/memfd:kvcluster-stand-in-gpu:1")
        finally:
            os.close(descriptor)
            driver.release(handle)

    @pytest.mark.parametrize("name", ["", "host", "cuda:", "cuda:x", "cuda:-1", "1", "gpu:0"])
    def test_what_names_no_device_is_a_value_error(self, stand_in: StandIn, name: str) -> None:
        with pytest.raises(ValueError, match="names no CUDA device"):
            open_cuda_driver(name)

    @pytest.mark.parametrize("name", ["cuda:2", "GPU-00000000-0000-0000-0000-000000000000"])
    def test_a_device_that_is_not_there_is_refused_with_those_that_are(self, stand_in: StandIn, name: str) -> None:
        with pytest.raises(DeviceMissing) as caught:
            open_cuda_driver(name)
        assert caught.value.device == name
        assert all(uuid in caught.value.reason for uuid in UUIDS)

    def test_a_device_that_fits_says_its_granularity_and_lacks_nothing(self, stand_in: StandIn) -> None:
        support = cuda_support(cuda_devices()[0])
        assert (support.granule_bytes, support.recommended_bytes, support.missing) == (64 << 10, 64 << 10, ())

    @pytest.mark.parametrize(
        ("setting", "sentence"),
        [("VMM", "no virtual memory management"), ("POSIX", "cannot be shared by POSIX descriptors")],
    )
    def test_what_a_device_lacks_is_named(self, stand_in: StandIn, setting: str, sentence: str) -> None:
        stand_in.set(**{setting: 0})
        assert sentence in cuda_support(cuda_devices()[0]).missing[0]
        with pytest.raises(DeviceMissing, match=sentence):
            open_cuda_driver()

    @pytest.mark.parametrize("code", [1, 800, 801])
    @pytest.mark.parametrize(
        "function",
        ["cuDeviceGetAttribute", "cuMemGetAllocationGranularity", "cuMemCreate", "cuMemExportToShareableHandle"],
    )
    def test_what_is_refused_when_it_is_tried_is_not_supported(
        self, stand_in: StandIn, function: str, code: int
    ) -> None:
        stand_in.fail(f"{function}@1={code}")
        with pytest.raises(DeviceMissing) as caught:
            open_cuda_driver()
        assert "host device" in caught.value.remedy
        assert stand_in.memory_alive() == {}

    @pytest.mark.parametrize(
        "function", ["cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuPointerGetAttribute", "cuDeviceGetCount"]
    )
    def test_a_driver_that_fails_while_it_is_opened_leaves_nothing(self, stand_in: StandIn, function: str) -> None:
        stand_in.fail(f"{function}@1=2")
        with pytest.raises(DriverError, match="OUT_OF_MEMORY"):
            open_cuda_driver()
        assert stand_in.memory_alive() == {}

    def test_memory_that_only_the_device_reaches_is_copied(self, stand_in: StandIn) -> None:
        stand_in.set(MEMORY_TYPE=2)
        bench = Bench(open_cuda_driver())
        assert not bench.driver.is_host_memory
        address = bench.reserve(1)
        bench.map(address, bench.create())
        bench.poke(address, b"by copies")
        assert bench.peek(address, 9) == b"by copies"
        bench.driver.set_access(address, bench.granule, Access.READ)
        with pytest.raises(DriverError, match="poke"):
            bench.poke(address, b"never")
        bench.clear()

    def test_memory_whose_kind_cuda_does_not_say_is_not_the_cpus(self, stand_in: StandIn) -> None:
        stand_in.fail("cuPointerGetAttribute@1=1")
        assert not open_cuda_driver().is_host_memory

    def test_a_forked_child_is_told_that_cuda_does_not_survive_a_fork(self, stand_in: StandIn) -> None:
        cuda_devices()

        def act() -> None:
            for call in (cuda_devices, open_cuda_driver):
                with pytest.raises(DeviceMissing, match="spawn or exec"):
                    call()

        assert forked(act) == 0
