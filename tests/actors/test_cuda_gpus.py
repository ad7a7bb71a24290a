"""Which GPU is meant, and how its memory is cut: by UUID, whatever Ray and CUDA_VISIBLE_DEVICES call it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from actors.backends import VISIBLE, gpus_visible
from actors.gpus import gpu_called, gpu_share, gpu_sizes, gpus_of, visible_to_ray
from actors.site import Place, Site
from kvcluster.config import ConfigError, Settings, Sizes, settings_from
from kvcluster.driver.cuda import CudaDevice, cuda_devices
from kvcluster.errors import DeviceMissing
from kvcluster.testing.stand_in_cuda import UUIDS, StandIn, fresh_stand_in
from kvcluster.units import KIB, MIB

SEEN = tuple(CudaDevice(number, f"GPU-{name}", "a GPU", 80 * MIB) for number, name in enumerate("abc"))


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    monkeypatch.delenv(VISIBLE, raising=False)
    with fresh_stand_in() as stand_in:
        assert len(cuda_devices()) == len(UUIDS)  # a process sees what it saw when it called CUDA first
        yield stand_in


@pytest.fixture
def patch(stand_in: StandIn) -> Iterator[pytest.MonkeyPatch]:
    """What it sets is put back before the library is: that looks at the environment again."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def settings(devices: str = "cuda", **values: Any) -> Settings:
    return settings_from({"model": "m", "devices": devices, **values})


@pytest.mark.parametrize(
    ("visible", "given", "uuid"),
    [
        (None, "2", "GPU-c"),
        ("", "1", "GPU-b"),
        ("4,7,9", "7", "GPU-b"),
        ("GPU-x,GPU-y,GPU-z", "GPU-z", "GPU-c"),
        ("MIG-1,MIG-2,MIG-3", "MIG-1", "GPU-a"),
    ],
)
def test_the_gpu_that_ray_gave_is_found_by_whatever_ray_calls_it(
    patch: pytest.MonkeyPatch, visible: str | None, given: str, uuid: str
) -> None:
    if visible is not None:
        patch.setenv(VISIBLE, visible)
    assert gpu_called(given, SEEN).uuid == uuid


@pytest.mark.parametrize(("visible", "given"), [(None, "3"), ("0,1,2,3", "3"), ("4,7,9", "0")])
def test_a_gpu_that_ray_gave_and_cuda_does_not_see_is_missing(
    patch: pytest.MonkeyPatch, visible: str | None, given: str
) -> None:
    if visible is not None:
        patch.setenv(VISIBLE, visible)
    with pytest.raises(DeviceMissing, match=f"^{given} cannot be opened: Ray gave it, and CUDA does not see it"):
        gpu_called(given, SEEN)


def test_the_gpus_that_are_named_are_those_of_their_numbers_in_that_order() -> None:
    assert [gpu.uuid for gpu in gpus_of(settings("cuda:1,0"))] == [UUIDS[1], UUIDS[0]]
    assert [gpu.uuid for gpu in gpus_of(settings())] == list(UUIDS)
    assert gpus_of(settings("host:0,1")) == ()


def test_a_number_that_no_gpu_has_is_refused_with_those_that_there_are(stand_in: StandIn) -> None:
    with pytest.raises(ConfigError, match=r"devices is cuda:0,2, and there are 2 here, cuda:0 to cuda:1: name those"):
        gpus_of(settings("cuda:0,2"))


@pytest.mark.parametrize(
    ("devices", "visible", "for_ray"),
    [
        ("cuda", "1", None),
        ("host:0", None, None),
        ("cuda:1", None, "1"),
        ("cuda:1,0", None, "1,0"),
        ("cuda:1", "GPU-a,GPU-b", "GPU-b"),
    ],
)
def test_a_ray_of_our_own_sees_the_gpus_that_are_named_by_the_names_that_this_process_knows_them_by(
    patch: pytest.MonkeyPatch, devices: str, visible: str | None, for_ray: str | None
) -> None:
    if visible is not None:
        patch.setenv(VISIBLE, visible)
    assert visible_to_ray(settings(devices)) == for_ray


@pytest.mark.parametrize("before", [None, "1,0"])
def test_what_children_see_is_put_back_after_the_block(patch: pytest.MonkeyPatch, before: str | None) -> None:
    if before is not None:
        patch.setenv(VISIBLE, before)
    with gpus_visible("7"):
        assert _visible() == "7"
    assert _visible() == before
    with gpus_visible(None):
        assert _visible() == before
    assert _visible() == before


def _visible() -> str | None:
    return os.environ.get(VISIBLE)


@pytest.mark.parametrize("workers", [1, 2, 3, 7, 64])
def test_the_shares_of_all_workers_at_a_gpu_are_no_more_than_the_gpu_and_none_is_nothing(workers: int) -> None:
    share = gpu_share(settings(workers_per_device=workers))
    assert share > 0
    assert round(share * 10_000) * workers <= 10_000
    assert gpu_share(settings("host")) == 0


@pytest.mark.parametrize(
    ("values", "sizes"),
    [
        ({}, Sizes(256 * MIB, 64 * KIB)),
        ({"device_memory": "8MiB"}, Sizes(8 * MIB, 64 * KIB)),
        ({"device_memory": "100KiB"}, Sizes(64 * KIB, 64 * KIB)),
        ({"device_memory": "8GiB"}, Sizes(256 * MIB, 64 * KIB)),
        ({"granule": "2MiB"}, Sizes(256 * MIB, 2 * MIB)),
    ],
)
def test_a_gpus_memory_is_what_was_asked_for_and_there_in_granules_that_it_recommends(
    values: dict[str, Any], sizes: Sizes
) -> None:
    assert gpu_sizes(UUIDS[0], settings(**values)) == sizes


def test_a_granule_that_is_none_of_the_gpus_is_refused_with_the_one_that_is(stand_in: StandIn) -> None:
    stand_in.set(GRANULE="2M")
    with pytest.raises(ConfigError, match=r"granule is 64KiB, and must be a multiple of 2\.0 MiB on .*: leave it out"):
        gpu_sizes(UUIDS[0], settings(granule="64KiB"))


def test_less_memory_than_a_granule_is_refused(stand_in: StandIn) -> None:
    stand_in.set(GRANULE="2M")
    with pytest.raises(ConfigError, match=r"device_memory is 1MiB, and must be at least a granule, which is 2\.0 MiB"):
        gpu_sizes(UUIDS[0], settings(device_memory="1MiB"))


def test_a_gpu_without_virtual_memory_is_missing_with_what_it_lacks(stand_in: StandIn) -> None:
    stand_in.set(VMM=0)
    with pytest.raises(DeviceMissing, match="the device has no virtual memory management"):
        gpus_of(settings())


def test_only_named_gpus_will_do_where_some_are_named_and_any_where_all_are() -> None:
    listed = Site(("node",), ("",), 1, 1.0, SEEN[:2], is_listed=True)
    listed.check("GPU-a")
    with pytest.raises(ConfigError, match="Ray gave a worker GPU-c, and devices names cuda:0 GPU-a, cuda:1 GPU-b: "):
        listed.check("GPU-c")
    Site(("node",), ("",), 1, 1.0, SEEN[:2]).check("GPU-c")
    assert listed.named(Place("node", "GPU-b")) == "cuda:1 GPU-b"
    assert listed.named(Place("node", "GPU-c")) == "GPU-c"
