"""A memory size below one granule a fragment, or above what the system allows, is refused with the sizes that do."""

from __future__ import annotations

from typing import Any

import pytest

from kvcluster.config import ConfigError, settings_from
from kvcluster.geometry.layout import Layout
from kvcluster.geometry.model import KvGeometry
from kvcluster.geometry.residency import Shape
from kvcluster.services.memory_check import check_memory
from kvcluster.units import MIB

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


def test_a_token_larger_than_a_granule_needs_all_its_granules() -> None:
    """8 KiB a token in granules of 4 KiB."""
    check(granule="4KiB", device_memory="8KiB")
    with pytest.raises(ConfigError, match=r"needs 8\.0 KiB \(2 granules of 4KiB; fragments: 1\)"):
        check(granule="4KiB", device_memory="4KiB")


def test_as_many_granules_as_the_system_allows_are_enough_and_one_more_is_not() -> None:
    check(device_memory=64 * MIB, descriptors=1_024, mappings=1_024)
    with pytest.raises(ConfigError, match=r"takes 1024 descriptors .* and 1023 are left: give at most 63\.9 MiB"):
        check(device_memory=64 * MIB, descriptors=1_023)
    with pytest.raises(ConfigError, match=r"takes 1024 mappings .* and 1023 are left: give at most 63\.9 MiB"):
        check(device_memory=64 * MIB, mappings=1_023)
