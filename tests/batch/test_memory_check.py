"""A memory size below one granule a fragment, or above what the system allows, is refused with the sizes that do."""

from __future__ import annotations

from typing import Any

import pytest

from kvcluster.config import ConfigError, Settings, settings_from
from kvcluster.geometry.layout import Layout
from kvcluster.geometry.model import KvGeometry, LayerGroup
from kvcluster.geometry.residency import Shape
from kvcluster.services.imports import most_kept
from kvcluster.services.memory_check import check_device, check_gpu, check_memory
from kvcluster.services.opening import most_tokens_in
from kvcluster.units import KIB, MIB, format_bytes

WINDOWED = KvGeometry(
    groups=(
        LayerGroup(layers=(0, 1, 2), kv_heads=1, head_dim=16, window_tokens=512),
        LayerGroup(layers=(3,), kv_heads=1, head_dim=16),
    ),
    element_bytes=4,
)
LLAMA = KvGeometry.uniform(layers=8, kv_heads=2, head_dim=64, element_bytes=4)
PLENTY = 100_000


def check(*, descriptors: int = PLENTY, mappings: int = PLENTY, layout: str = "token-major", **values: Any) -> None:
    settings = settings_from({"model": "m", "layout": layout, **values})
    shape = Shape.of(LLAMA, Layout(layout), settings.granule_bytes)
    check_memory(settings, shape, descriptors, mappings)


@pytest.mark.parametrize(("layout", "fragments"), [("token-major", 1), ("seq-major", 16), ("head-major", 32)])
def test_one_granule_a_fragment_is_enough_and_one_granule_less_is_not(layout: str, fragments: int) -> None:
    check(layout=layout, device_memory=fragments * 65_536)
    if fragments > 1:
        with pytest.raises(ConfigError, match=f"{fragments} granules of 64KiB; fragments: {fragments}"):
            check(layout=layout, device_memory=(fragments - 1) * 65_536)


def test_a_model_with_sliding_windows_needs_room_for_all_of_them() -> None:
    """512 tokens of 384 bytes are 3 granules, and a token of one request takes but 2."""
    shape = Shape.of(WINDOWED, Layout.TOKEN_MAJOR, 64 * KIB)
    enough, short = (settings_from({"model": "m", "device_memory": granules * 64 * KIB}) for granules in (3, 2))
    check_memory(enough, shape, PLENTY, PLENTY)
    check_gpu(enough, shape, 192 * KIB)
    assert most_tokens_in(shape, 128 * KIB, at_most=100) == 0 < most_tokens_in(shape, 192 * KIB, at_most=100)
    with pytest.raises(
        ConfigError,
        match=r"sliding windows in the token-major layout need 192\.0 KiB \(3 granules of 64KiB\): give at least",
    ):
        check_memory(short, shape, PLENTY, PLENTY)
    with pytest.raises(ConfigError, match=r"128\.0 KiB of the GPU are left .* need 192\.0 KiB"):
        check_gpu(enough, shape, 128 * KIB)


def test_what_tenants_keep_is_no_room_for_requests() -> None:
    check(device_memory="256KiB", tenant_quotas={"a": "192KiB"})
    with pytest.raises(ConfigError, match="device_memory is 256KiB, of which tenant_quotas leave 0 B, and one token"):
        check(device_memory="256KiB", tenant_quotas={"a": "256KiB"})


def test_a_token_larger_than_a_granule_needs_all_its_granules() -> None:
    """8 KiB a token in granules of 4 KiB."""
    check(granule="4KiB", device_memory="8KiB")
    with pytest.raises(ConfigError, match=r"needs 8\.0 KiB \(2 granules of 4KiB; fragments: 1\)"):
        check(granule="4KiB", device_memory="4KiB")


def settings_of(granules: int, **values: Any) -> Settings:
    return settings_from({"model": "m", "device_memory": granules * 64 * KIB, **values})


@pytest.mark.parametrize(("granules", "needed"), [(1, 2), (100, 200), (253, 506), (254, 507), (10_000, 10_253)])
def test_a_device_has_a_descriptor_for_each_granule_and_for_each_of_one_packet(granules: int, needed: int) -> None:
    check_device(settings_of(granules), needed)
    with pytest.raises(ConfigError, match=f"takes {needed} descriptors in the device's .* and {needed - 1} are left"):
        check_device(settings_of(granules), needed - 1)


@pytest.mark.parametrize("room", [1, 2, 3, 505, 506, 507, 508, 9_999])
def test_the_size_that_a_refusal_names_is_accepted_and_one_granule_more_is_not(room: int) -> None:
    """What fits goes up by one for two descriptors up to a packet, and then one for one."""
    most = room // 2 if room < 507 else room - 253
    with pytest.raises(ConfigError) as refused:
        check_device(settings_of(10_000), room)
    assert (f"give at most {format_bytes(most * 64 * KIB)}" in str(refused.value)) == (most > 0)
    if most:
        check_device(settings_of(most), room)
    with pytest.raises(ConfigError):
        check_device(settings_of(most + 1), room)


def test_a_worker_has_a_descriptor_for_each_granule_for_the_imports_that_it_keeps_and_for_one_that_arrives() -> None:
    needed = 1_024 + most_kept(1_366) + 1
    assert needed == 1_366
    check(device_memory=64 * MIB, descriptors=needed)
    with pytest.raises(ConfigError, match=r"takes 1366 descriptors .* and 1365 are left: give at most 63\.9 MiB"):
        check(device_memory=64 * MIB, descriptors=needed - 1)


@pytest.mark.parametrize(
    ("layout", "fragments", "sequences"),
    [("token-major", 1, 16), ("seq-major", 16, 16), ("head-major", 32, 16), ("head-major", 32, 4)],
)
def test_a_worker_has_a_mapping_for_each_granule_each_rest_of_a_fragment_and_each_range_that_waits(
    layout: str, fragments: int, sequences: int
) -> None:
    needed = 1_024 + fragments * sequences + sequences + 1
    check(device_memory=64 * MIB, mappings=needed, layout=layout, max_num_seqs=sequences)
    with pytest.raises(ConfigError, match=f"takes {needed} mappings in a worker's process .* and {needed - 1} are"):
        check(device_memory=64 * MIB, mappings=needed - 1, layout=layout, max_num_seqs=sequences)


def test_no_more_sequences_are_counted_than_have_a_granule_in_each_fragment() -> None:
    check(device_memory=64 * 64 * KIB, layout="head-major", max_num_seqs=16, mappings=64 + 2 * 32 + 16 + 1)


@pytest.mark.parametrize(("layout", "fragments"), [("token-major", 1), ("seq-major", 16)])
def test_what_a_gpu_has_left_is_enough_from_one_granule_a_fragment_on(layout: str, fragments: int) -> None:
    settings = settings_from({"model": "m", "devices": "cuda", "layout": layout})
    shape = Shape.of(LLAMA, Layout(layout), 2 * MIB)
    check_gpu(settings, shape, fragments * 2 * MIB)
    with pytest.raises(
        ConfigError, match=rf"of the GPU are left for .* \({fragments} granules of 2\.0 MiB; fragments: "
    ):
        check_gpu(settings, shape, fragments * 2 * MIB - 1)
