"""What a frame carries at most, counted before anything is unmapped: asks, operations, and runs of windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from kvcluster.driver.protocol import Fence
from kvcluster.errors import NotAllowed
from kvcluster.services.asks import MOST, MOST_ASKS, MOST_PREFIXES, Ask, End, Grow, Leave, Publish, Seal, Shed, load_of
from kvcluster.services.frames import in_frames
from kvcluster.services.sequence import MemoryState, SequenceMemory
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
    memories = [world.open((prefixes + 1) * 16) for _ in range(count)]
    for tokens in range(16, prefixes * 16 + 1, 16):
        send(world, [Grow(memory, tokens) for memory in memories])
        send(world, [Publish(memory, tokens) for memory in memories])
        send(world, [Seal(memory) for memory in memories])
    return memories


def test_more_than_a_frame_carries_may_wait_for_one_fence_and_comes_back_in_several(open_world: OpenWorld) -> None:
    world = open_world(Sizes(capacity=MOST_ASKS + 1))
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
    assert world.granules("free") == MOST_ASKS + 1
    assert world.device.port.tend() == ()
    memories[-1].commit(16, memories[-1].grant(16))


@pytest.mark.parametrize("back", [Shed, End, Leave])
def test_a_leave_for_each_prefix_is_counted_before_anything_is_unmapped(
    open_world: OpenWorld, back: Callable[[SequenceMemory], Ask]
) -> None:
    """600 memories of six prefixes each: 1,200 releases at most, and 3,600 leaves."""
    prefixes, count = 6, 600
    world = open_world(Sizes(capacity=prefixes * count))
    memories = stacked(world, prefixes, count)
    assert len(memories) <= MOST.asks
    calls = len(world.driver.log())
    with pytest.raises(ValueError, match="4096 operations"):
        world.device.port.submit([back(memory) for memory in memories])
    assert len(world.driver.log()) == calls
    assert {(memory.state, memory.shared_bytes) for memory in memories} == {(MemoryState.OPEN, prefixes * GRANULE)}
    send(world, [back(memory) for memory in memories])
    assert world.granules("free") == prefixes * count


def test_what_a_request_shares_can_always_be_left_in_one_frame(open_world: OpenWorld) -> None:
    world = open_world(Sizes(capacity=MOST_PREFIXES + 1))
    [memory] = stacked(world, MOST_PREFIXES, 1)
    send(world, [Grow(memory, (MOST_PREFIXES + 1) * 16)])
    assert load_of(End(memory)).fits(MOST)
    frames = world.device.statistics().frames
    with pytest.raises(NotAllowed, match=f"at most {MOST_PREFIXES} prefixes"):
        memory.publish((MOST_PREFIXES + 1) * 16)
    assert world.device.statistics().frames == frames
    memory.close()
    assert world.granules("free") == MOST_PREFIXES + 1
