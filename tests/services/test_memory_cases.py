"""Faults that users of comparable systems met, where no other test would show them: docs/FAULTS.md has all of them.

Each runs on the host and on a stand-in's GPU, over the whole way from a request to the driver.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from kvcluster.errors import DriverError, NeverFits
from kvcluster.geometry.layout import Layout
from kvcluster.geometry.model import KvGeometry, LayerGroup
from kvcluster.services.sequence import SequenceMemory, SequenceSpec
from kvcluster.services.statistics import DeviceStatistics
from kvcluster.testing.faulty_driver import failing_named, never
from kvcluster.testing.invariants import assert_nothing_lost, mappings
from tests.services.world import GEOMETRY, GRANULE, TOKENS, Sizes, World, names, pieces

UNEVEN = KvGeometry.uniform(layers=3, kv_heads=1, head_dim=12, element_bytes=4)  # 288 bytes a token, 14.2 a granule
WIDE = KvGeometry.uniform(layers=2, kv_heads=1, head_dim=800, element_bytes=4)  # 3.1 granules a token
LAYOUTS = pytest.mark.parametrize("layout", list(Layout))


@pytest.fixture
def gpu(on_both: str) -> str:
    return on_both


@pytest.fixture
def neighbour(gpu: str) -> Iterator[World]:
    """A second device of this process."""
    world = World(Sizes(), "cuda:1" if gpu else "")
    yield world
    world.clear()


def grow(memory: SequenceMemory, tokens: int) -> None:
    memory.commit(tokens, memory.grant(tokens))


def paint(memory: SequenceMemory, colour: int) -> None:
    for address, size_bytes in pieces(memory):
        ctypes.memset(address, colour, size_bytes)


def colours(memory: SequenceMemory) -> set[int]:
    """Every value that a byte of it has."""
    return {byte for address, size_bytes in pieces(memory) for byte in ctypes.string_at(address, size_bytes)}


def closed_whole(world: World) -> None:
    """Close the device; everything that was created is released, once."""
    world.device.close()
    calls = world.driver.calls()
    assert calls.get("create", 0) == calls.get("release", 0)
    assert calls["reserve"] == calls["free_address"]
    assert world.driver.memory_info().held_bytes == 0


@pytest.mark.no_cover
def test_a_snapshot_in_the_middle_of_others_work_is_of_one_moment(world: World) -> None:
    over = threading.Event()
    seen: list[DeviceStatistics] = []

    def look() -> None:
        while not over.is_set():
            seen.append(world.service.statistics())

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        for number in range(100):
            memory = world.grown(1 + number % (6 * TOKENS))
            grow(memory, 8 * TOKENS)
            memory.close()
    finally:
        over.set()
        watcher.join()
    assert {sum(one.accounts.values()) for one in seen} == {64 * GRANULE}
    assert all(min(one.accounts.values()) > 0 and min(one.handles.values()) >= 0 for one in seen)
    assert all(one.committed_bytes == one.handles["out"] for one in seen)
    assert len({one.committed_bytes for one in seen}) > 1  # it was looked at in the middle


@LAYOUTS
def test_one_that_stays_of_many_that_grew_together_costs_what_it_costs_alone(
    open_world: Callable[..., World], layout: Layout
) -> None:
    world = open_world(Sizes(capacity=512))
    memories = [world.open(8 * TOKENS, layout=layout) for _ in range(6)]
    for tokens in range(1, 8 * TOKENS, 5):
        for memory in memories:
            grow(memory, tokens)
    for memory in memories[1:]:
        memory.close()
    alone = memories[0].holdings.shape.committed_bytes(tokens)
    assert (world.granules("requests"), world.handles("out")) == (alone // GRANULE, alone // GRANULE)
    assert world.driver.memory_info().held_bytes <= alone + 4 * GRANULE  # and what the pool may keep


@LAYOUTS
def test_growth_by_any_number_of_tokens_is_booked_and_given_back_in_whole_granules(
    open_world: Callable[..., World], layout: Layout
) -> None:
    world = open_world(Sizes(capacity=512))
    memory = world.device.open(UNEVEN, max_tokens=200, layout=layout)
    for tokens in (1, 2, 14, 15, 29, 30, 99, 199, 200):
        grow(memory, tokens)
        assert memory.committed_bytes == memory.holdings.shape.committed_bytes(tokens)
        assert world.granules("requests") * GRANULE == memory.committed_bytes
        paint(memory, tokens)
    memory.release()
    assert (memory.committed_bytes, world.granules("requests"), mappings()) == (0, 0, ())
    grow(memory, 3)
    memory.close()
    assert_nothing_lost(world.device)


def test_two_that_grow_in_turns_share_no_byte_where_a_token_ends_inside_a_granule(world: World) -> None:
    memories = [world.device.open(UNEVEN, max_tokens=100) for _ in range(4)]
    for tokens in range(1, 100, 7):
        for memory in memories:
            grow(memory, tokens)
        for colour, memory in enumerate(memories):
            paint(memory, colour)
        assert [colours(memory) for memory in memories] == [{0}, {1}, {2}, {3}]


def test_a_token_larger_than_a_granule_takes_several_and_one_larger_than_the_device_is_refused_with_the_size(
    world: World,
) -> None:
    memory = world.device.open(WIDE, max_tokens=20)
    grow(memory, 1)
    paint(memory, 1)
    assert (memory.tokens, memory.committed_bytes) == (1, 4 * GRANULE)
    huge = world.device.open(WIDE, max_tokens=21)
    with pytest.raises(NeverFits) as caught:
        huge.grant(1)
    assert (caught.value.need, caught.value.capacity) == (66 * GRANULE, 64 * GRANULE)


def _given_back(world: World, memory: SequenceMemory) -> None:
    memory.release()


def _given_back_twice(world: World, memory: SequenceMemory) -> None:
    memory.release()
    memory.release()


def _about_to_be_given_back(world: World, memory: SequenceMemory) -> None:
    with world.working():
        memory.release(after=world.driver.fence())


def _closed(world: World, memory: SequenceMemory) -> None:
    memory.close()


@pytest.mark.parametrize("leave", [_given_back, _given_back_twice, _about_to_be_given_back, _closed])
def test_a_memory_that_is_closed_after_it_gave_everything_back_releases_nothing_twice(
    world: World, leave: Callable[[World, SequenceMemory], None]
) -> None:
    memory = world.grown(90)
    leave(world, memory)
    memory.close()
    memory.close()
    assert_nothing_lost(world.device)
    closed_whole(world)


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_when_access_cannot_be_set_what_was_mapped_is_unmapped_and_its_handles_are_free(
    world: World, number: int
) -> None:
    memory = world.open(layout=Layout.SEQ_MAJOR)  # four fragments, so four runs
    world.driver.follow(failing_named("set_access", number))
    with pytest.raises(DriverError):
        grow(memory, 40)
    assert (mappings(), memory.committed_bytes) == ((), 0)
    assert (world.granules("requests"), world.handles("out")) == (0, 0)
    world.healed()
    grow(memory, 40)
    memory.close()
    closed_whole(world)


@pytest.mark.parametrize(
    "spec",
    [
        {"max_tokens": 0},
        {"max_tokens": -1},
        {"chunk_tokens": 0, "geometry": KvGeometry((LayerGroup((0,), 1, 16, window_tokens=32),), 4)},
        {"max_tokens": 2**62},
    ],
    ids=["no tokens", "negative", "no chunk", "endless"],
)
def test_a_memory_that_cannot_be_made_strands_no_address(world: World, spec: dict[str, int]) -> None:
    wanted = {"geometry": GEOMETRY, "layout": Layout.TOKEN_MAJOR, "max_tokens": TOKENS} | spec
    with pytest.raises((ValueError, DriverError)):
        world.device.port.memory(SequenceSpec(**wanted))  # type: ignore[arg-type]
    assert world.device.port.memories() == ()
    assert world.driver.calls().get("reserve", 0) == 0


def test_a_reserve_that_fails_frees_nothing_and_is_the_error_that_is_told(world: World) -> None:
    world.driver.follow(failing_named("reserve", 1))
    with pytest.raises(DriverError) as caught:
        world.open()
    assert (caught.value.call, names(world.healed())) == ("reserve", ["reserve"])
    grow(world.open(), 40)


def test_after_any_failed_call_the_next_operation_does_all_of_its_work(world: World) -> None:
    for call in ("create", "map", "set_access", "unmap", "synchronize", "release"):
        memory = world.grown(20)
        world.driver.follow(failing_named(call, 1))
        with suppress(DriverError):
            grow(memory, 200)
            world.driver.follow(never())
        world.healed()
        grow(other := world.open(), 40)
        paint(other, 7)
        assert (colours(other), other.tokens) == ({7}, 48)
        calls = names(world.driver.since_plan())
        assert (calls.count("map"), calls.count("set_access")) == (3, 1)
        other.close()
        memory.close()


def test_two_devices_never_lend_each_others_memory(world: World, neighbour: World) -> None:
    first = world.grown(60)
    first.close()  # its handles wait in the first device's pool
    held = world.driver.memory_info().held_bytes
    second = neighbour.grown(60)
    assert neighbour.driver.calls()["create"] == 4
    assert (world.driver.memory_info().held_bytes, world.handles("pooled")) == (held, 4)
    third = world.grown(60)
    assert world.driver.calls()["create"] == 4  # its own again
    paint(second, 2)
    paint(third, 3)
    assert (colours(second), colours(third)) == ({2}, {3})
    closed_whole(neighbour)
    assert colours(third) == {3}
