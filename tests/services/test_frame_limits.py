"""What a frame carries at most, counted before anything is unmapped: asks, operations, and runs of windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import pytest

from kvcluster.driver.protocol import Fence
from kvcluster.errors import NotAllowed
from kvcluster.services.ask_checks import refusal_of
from kvcluster.services.asks import (
    MOST,
    MOST_ASKS,
    MOST_PREFIXES,
    Ask,
    End,
    Grow,
    Leave,
    Publish,
    Seal,
    Shed,
    TakeSnapshot,
    load_of,
)
from kvcluster.services.frames import in_frames
from kvcluster.services.memory_state import MemoryState
from kvcluster.services.sequence import SequenceMemory
from tests.services.world import GRANULE, Sizes, World

OpenWorld = Callable[..., World]


class Done:
    """A fence of work that is over when somebody says so."""

    is_over = False

    def done(self) -> bool:
        return self.is_over

    def wait(self) -> None:
        self.is_over = True


def send(world: World, asks: Sequence[Ask]) -> None:
    """All of `asks`, as one may, in as many frames as they take."""
    for frame in in_frames(asks):
        outcomes = world.device.port.submit(frame).settle()
        assert {outcome.error for outcome in outcomes} == {None}


def stacked(world: World, prefixes: int, count: int) -> list[SequenceMemory]:
    """`count` memories; each has published so many prefixes, of a granule each."""
    memories = [world.open(prefixes * 16) for _ in range(count)]
    send(world, [Grow(memory, prefixes * 16) for memory in memories])
    for tokens in range(16, prefixes * 16 + 1, 16):
        send(world, [Publish(memory, tokens) for memory in memories])
        send(world, [Seal(memory) for memory in memories])
    return memories


def test_more_than_a_frame_carries_may_wait_for_one_fence_and_comes_back_in_several(open_world: OpenWorld) -> None:
    world = open_world(Sizes(capacity=3 * MOST_ASKS))
    memories = [world.open() for _ in range(MOST_ASKS + 1)]
    send(world, [Grow(memory, 16) for memory in memories])
    fence = Done()
    waited_for: Fence = fence
    for memory in memories:
        memory.release(after=waited_for)
    assert world.device.port.tend() == ()
    fence.is_over = True
    frames = world.device.statistics().frames
    outcomes = world.device.port.tend()
    assert [(outcome.ask.memory, outcome.error) for outcome in outcomes] == [(memory, None) for memory in memories]
    assert world.device.statistics().frames == frames + 2
    assert world.granules("free") == 3 * MOST_ASKS
    assert world.device.port.tend() == ()
    memories[-1].commit(16, memories[-1].grant(16))


@pytest.mark.no_cover
def test_a_leave_for_each_prefix_is_counted_before_anything_is_unmapped(open_world: OpenWorld) -> None:
    """820 memories of three prefixes each: two releases at most and three leaves, each."""
    prefixes, count = 3, 820
    world = open_world(Sizes(capacity=prefixes * count))
    memories = stacked(world, prefixes, count)
    assert len(memories) <= MOST.asks
    calls = len(world.driver.log())
    for back in (Leave, Shed, End):
        with pytest.raises(ValueError, match="4096 operations"):
            world.device.port.submit([back(memory) for memory in memories])
    assert len(world.driver.log()) == calls
    assert {(memory.state, memory.shared_bytes) for memory in memories} == {(MemoryState.OPEN, prefixes * GRANULE)}
    send(world, [End(memory) for memory in memories])
    assert world.granules("free") == prefixes * count


@dataclass(frozen=True)
class HeldPrefixes:
    prefix_count: int
    takes_windows: bool = True


@dataclass(frozen=True)
class HeldMemory:
    """As much of a memory as its limits look at."""

    holdings: HeldPrefixes
    returnable_runs: int = 1


def test_all_that_a_request_may_share_can_be_left_in_one_frame() -> None:
    full = cast(SequenceMemory, HeldMemory(HeldPrefixes(MOST_PREFIXES)))
    assert load_of(End(full)).fits(MOST)
    assert isinstance(refusal_of(Publish(full, 16)), NotAllowed)
    assert isinstance(refusal_of(TakeSnapshot(full, 16, 16)), NotAllowed)
    assert refusal_of(Publish(cast(SequenceMemory, HeldMemory(HeldPrefixes(MOST_PREFIXES - 1))), 16)) is None
