"""A reservation that grows in place, by the kernel's own figures: bytes held (st_blocks), what is mapped (/proc).

A reservation for 131,072 tokens of 2 layers, 1 head, head_dim 16 in float32 holds nothing; it grows to the end in
place, and nothing is copied.
Source: "Virtual Memory for KV Cache", case one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

from kvcluster.geometry.layout import Layout
from kvcluster.geometry.residency import Shape
from kvcluster.services.asks import Grow
from kvcluster.services.sequence import SequenceMemory
from kvcluster.testing.invariants import assert_nothing_lost, mappings
from kvcluster.units import KIB, MIB
from tests.services.world import GEOMETRY, Sizes, World, digest, fill, names, pieces

OpenWorld = Callable[..., World]
MOST = 131_072
GRANULES = [4 * KIB, 64 * KIB, 2 * MIB]
each_granule = pytest.mark.parametrize("granule", GRANULES, ids=lambda granule: f"{granule // KIB}KiB")


@pytest.fixture
def gpu(on_both: str) -> str:
    return on_both


def world_of(open_world: OpenWorld, layout: Layout, granule: int) -> tuple[World, SequenceMemory]:
    capacity = Shape.of(GEOMETRY, layout, granule).committed_bytes(MOST) // granule
    world = open_world(Sizes(capacity=capacity, pool=capacity, granule_bytes=granule))
    return world, world.open(MOST, layout=layout)


def grow(memory: SequenceMemory, tokens: int) -> None:
    memory.commit(tokens, memory.grant(tokens))


def held(world: World) -> int:
    return world.driver.memory_info().held_bytes


def where(memory: SequenceMemory) -> list[tuple[str, ...]]:
    """The kernel's mappings within the memory's range: address, access, offset, device, inode; end left out."""
    start, stop = memory.address, memory.address + memory.reserved_bytes
    found = []
    for line in mappings():
        address, access, offset, device, inode, *_ = line.split()
        if start <= int(address.partition("-")[0], 16) < stop:
            found.append((address.partition("-")[0], access, offset, device, inode))
    return found


@each_granule
@pytest.mark.parametrize("layout", list(Layout))
def test_a_reservation_holds_nothing_and_tokens_cost_a_granule_a_window(
    open_world: OpenWorld, layout: Layout, granule: int
) -> None:
    world, memory = world_of(open_world, layout, granule)
    assert memory.reserved_bytes == MOST * 256
    assert (held(world), where(memory)) == (0, [])
    grow(memory, 200)
    windows = {Layout.TOKEN_MAJOR: 1, Layout.SEQ_MAJOR: 4, Layout.HEAD_MAJOR: 4}[layout]
    windows *= -(-200 * 256 // (windows * granule))
    assert held(world) == granule * windows == memory.committed_bytes
    assert world.driver.calls()["create"] == world.driver.calls()["map"] == windows
    assert len(where(memory)) == windows
    memory.close()
    assert_nothing_lost(world.device)


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("layout", "granule"),
    [(Layout.TOKEN_MAJOR, 4 * KIB), *itertools.product(Layout, GRANULES[1:])],  # 8,192 windows once: a second each
)
def test_grown_to_the_end_the_bytes_stay_where_they_were_and_nothing_is_copied(
    open_world: OpenWorld, layout: Layout, granule: int
) -> None:
    world, memory = world_of(open_world, layout, granule)
    grow(memory, 200)
    fill(memory)
    views = memory.views(torch.float32)
    pointers = [tensor.data_ptr() for tensor in (*views.k, *views.v)]
    world.healed()
    for tokens in (4_096, 65_536, MOST):
        earlier, early = pieces(memory), where(memory)
        content = digest(memory, earlier)  # of every byte there is
        grow(memory, tokens)
        now = memory.views(torch.float32)
        assert [tensor.data_ptr() for tensor in (*now.k, *now.v)] == pointers
        assert digest(memory, earlier) == content
        assert set(early) <= set(where(memory))  # the same pages, at the same addresses
        fill(memory)
    assert set(names(world.driver.since_plan())) <= {"create", "map", "set_access"}
    assert held(world) == MOST * 256
    assert memory.tokens == MOST
    memory.close()
    assert_nothing_lost(world.device)


@each_granule
@pytest.mark.parametrize("layout", list(Layout))
def test_after_a_release_a_commit_uses_the_same_address_without_a_reserve(
    open_world: OpenWorld, layout: Layout, granule: int
) -> None:
    world, memory = world_of(open_world, layout, granule)
    grow(memory, 8_192)
    address, committed = memory.address, memory.committed_bytes
    memory.release()
    assert (memory.tokens, memory.committed_bytes, where(memory)) == (0, 0, [])
    world.healed()
    grow(memory, 8_192)
    fill(memory)
    assert memory.address == address
    assert (memory.committed_bytes, held(world)) == (committed, committed)
    assert set(names(world.driver.since_plan())) == {"map", "set_access"}  # pooled handles, the old address
    memory.close()


def test_a_commit_of_what_is_there_makes_no_driver_call_and_no_message(world: World) -> None:
    memory = world.grown(40)
    frames, calls = world.device.statistics().frames, len(world.driver.log())
    [outcome] = world.device.port.submit([Grow(memory, 48)]).settle()
    assert outcome.error is None
    assert (world.device.statistics().frames, len(world.driver.log())) == (frames, calls)


def test_one_growth_is_one_set_access_a_run_and_one_release_one_unmap_a_run(world: World) -> None:
    memory = world.grown(16, layout=Layout.SEQ_MAJOR, max_tokens=640)
    world.healed()
    grow(memory, 640)
    calls = names(world.driver.since_plan())
    assert (calls.count("map"), calls.count("set_access")) == (4 * 9, 4)
    world.healed()
    memory.release()
    calls = names(world.driver.since_plan())
    assert (calls.count("synchronize"), calls.count("unmap")) == (1, 4)
