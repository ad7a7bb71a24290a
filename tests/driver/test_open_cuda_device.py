"""A GPU's device in this very process: its capacity, its granule, and a request that grows on it."""

from __future__ import annotations

import pytest

import kvcluster
from kvcluster.errors import DeviceMissing
from kvcluster.geometry.layout import Layout
from kvcluster.geometry.model import KvGeometry, LayerGroup
from kvcluster.testing.invariants import assert_nothing_lost
from kvcluster.testing.stand_in_cuda import UUIDS, StandIn
from kvcluster.units import KIB, MIB

GEOMETRY = KvGeometry((LayerGroup((0, 1), 2, 64),), 4)


@pytest.mark.parametrize("name", ["cuda:1", UUIDS[1]])
def test_a_request_grows_on_a_gpu_and_gives_all_back(stand_in: StandIn, name: str) -> None:
    with kvcluster.open_device(name, memory="32MiB") as device:
        with device.open(GEOMETRY, max_tokens=4_096, layout=Layout.TOKEN_MAJOR) as memory:
            for tokens in (1, 100, 2_000, 4_096):
                memory.commit(tokens, memory.grant(tokens))
            assert memory.committed_bytes == 4_096 * 2 * 2 * 2 * 64 * 4
        assert device.driver.calls()["map"] > 1
        assert_nothing_lost(device)
    assert stand_in.memory_alive() == {}


@pytest.mark.parametrize(
    ("asked", "utilization", "capacity"),
    [("64MiB", 0.9, 64 * MIB), ("1GiB", 0.5, 128 * MIB), ("1GiB", 0.9, int(0.9 * 256 * MIB) // (64 * KIB) * 64 * KIB)],
)
def test_the_capacity_is_what_is_asked_for_and_at_most_a_share_of_what_is_free(
    stand_in: StandIn, asked: str, utilization: float, capacity: int
) -> None:
    with kvcluster.open_device("cuda:0", memory=asked, utilization=utilization) as device:
        assert device.statistics().capacity_bytes == capacity


def test_the_granule_is_the_gpus_own_or_a_multiple_of_it(stand_in: StandIn) -> None:
    with (
        kvcluster.open_device("cuda:0", memory="64MiB", granule="2MiB") as device,
        device.open(GEOMETRY, max_tokens=64) as memory,
    ):
        memory.commit(1, memory.grant(1))
        assert memory.committed_bytes == 2 * MIB
    with pytest.raises(ValueError, match="a multiple of 65536 bytes"):
        kvcluster.open_device("cuda:0", granule="4KiB")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"memory": "100KiB"}, "no whole number of granules"),
        ({"utilization": 0}, "a utilization"),
        ({"utilization": 1.1}, "a utilization"),
    ],
)
def test_a_device_that_cannot_be_is_a_value_error(
    stand_in: StandIn, arguments: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        kvcluster.open_device("cuda:0", **arguments)


def test_a_gpu_that_is_not_there_is_named(stand_in: StandIn) -> None:
    with pytest.raises(DeviceMissing, match="cuda:7 cannot be opened"):
        kvcluster.open_device("cuda:7")
