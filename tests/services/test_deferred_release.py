"""A release that waits for work: until the fence is done everything stays mapped and charged, and nobody waits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from kvcluster.driver.protocol import Fence
from kvcluster.errors import NotAllowed, Quarantined
from kvcluster.services.asks import Grow, Shed
from kvcluster.services.local import open_device
from kvcluster.services.memory_state import MemoryState
from kvcluster.testing.faulty_driver import failing_every
from kvcluster.testing.invariants import assert_nothing_lost
from tests.services.prefixes import M, published
from tests.services.world import GEOMETRY, GRANULE, World, digest, names


@pytest.fixture
def gpu(on_both: str) -> str:
    return on_both


class Work:
    """Work under way until `end`; `fence` is what a release waits for."""

    def __init__(self, world: World, block: ExitStack) -> None:
        self._block = block
        self.fence: Fence = world.driver.fence()

    def end(self) -> None:
        self._block.close()


@contextmanager
def under_way(world: World) -> Iterator[Work]:
    with ExitStack() as block:
        block.enter_context(world.working())
        yield Work(world, block)


def test_until_its_work_is_done_a_memory_stays_mapped_and_charged_and_nothing_is_called(world: World) -> None:
    memory = world.grown(M)
    content, frames = digest(memory), world.device.statistics().frames
    with under_way(world) as work:
        world.healed()
        memory.release(after=work.fence)
        assert world.device.port.tend() == ()
        assert set(names(world.driver.since_plan())) <= {"fence_done"}
        assert (memory.committed_bytes, world.granules("requests")) == (6 * GRANULE, 6)
        assert (digest(memory), world.device.statistics().frames) == (content, frames)
        work.end()
        [outcome] = world.device.port.tend()
    assert (outcome.ask.memory, outcome.error) == (memory, None)
    assert (memory.committed_bytes, world.granules("free")) == (0, 64)
    calls = names(world.driver.since_plan())
    assert (calls.count("unmap"), calls.count("synchronize")) == (1, 0)  # its fence was the wait
    assert world.device.port.tend() == ()


def test_a_memory_that_leaves_takes_no_asks_until_it_is_back_and_then_grows_in_place(world: World) -> None:
    memory = world.grown(M)
    address = memory.address
    with under_way(world) as work:
        memory.release(after=work.fence)
        for ask in (lambda: memory.commit(128, memory.grant(128)), lambda: memory.publish(M), lambda: memory.grant(1)):
            with pytest.raises(NotAllowed, match="given back once its work is done"):
                ask()
    world.device.port.tend()
    memory.commit(M, memory.grant(M))
    assert memory.address == address


def test_work_that_is_done_already_is_not_waited_for_at_all(world: World) -> None:
    memory = world.grown(M)
    with under_way(world) as work:
        pass
    world.healed()
    memory.release(after=work.fence)
    assert memory.committed_bytes == 0
    assert "synchronize" not in names(world.healed())


def test_those_whose_work_is_done_share_a_frame_and_the_others_wait_on(world: World) -> None:
    early, late, later = (world.grown(16) for _ in range(3))
    with under_way(world) as long:
        with under_way(world) as short:
            early.release(after=short.fence)
            late.release(after=short.fence)
            later.release(after=long.fence)
            assert world.device.port.tend() == ()
        frames = world.device.statistics().frames
        assert world.device.port.tend() == ()  # the fences cover the longer work too
    assert {outcome.ask.memory for outcome in world.device.port.tend()} == {early, late, later}
    assert world.device.statistics().frames == frames + 1


def test_a_joiner_leaves_its_prefix_when_its_work_is_done(world: World) -> None:
    owner, prefix = published(world)
    joiner = world.open()
    joiner.join(prefix, M)
    owner.close()
    with under_way(world) as work:
        joiner.release(after=work.fence)
        assert world.granules(f"prefix/{prefix.number}") == 5
    world.device.port.tend()
    assert_nothing_lost_but(world, joiner)


def assert_nothing_lost_but(world: World, memory: object) -> None:
    assert world.granules("free") == 64
    assert world.device.port.memories() == (memory,)


def test_a_close_does_not_wait_for_the_next_boundary(world: World) -> None:
    memory = world.grown(M)
    with under_way(world) as work:
        memory.release(after=work.fence)
        work.end()
        memory.close()
    assert memory.state is MemoryState.CLOSED
    assert world.device.port.tend() == ()
    assert_nothing_lost(world.device)


def test_a_shed_of_work_that_is_under_way_is_refused_and_the_memory_is_as_it_was(world: World) -> None:
    memory = world.grown(M)
    with under_way(world) as work:
        [outcome] = world.device.port.submit([Shed(memory, work.fence)]).settle()
        assert isinstance(outcome.error, NotAllowed)
        assert (memory.tokens, world.granules("requests")) == (96, 6)
        [outcome] = world.device.port.submit([Grow(memory, 128)]).settle()
        assert outcome.error is None


def test_a_fence_that_cannot_be_read_quarantines_everything(world: World) -> None:
    memory = world.grown(M)
    with under_way(world) as work:
        memory.release(after=work.fence)
        world.driver.follow(failing_every("fence_done"))
        [outcome] = world.device.port.tend()
    world.healed()
    assert isinstance(outcome.error, Quarantined)
    assert (world.granules("quarantine"), world.granules("requests")) == (6, 0)
    assert memory.committed_bytes == 6 * GRANULE


def test_an_unmap_that_fails_at_the_boundary_is_told_and_stays_charged(world: World) -> None:
    memory, other = world.grown(M), world.grown(16)
    with under_way(world) as work:
        memory.release(after=work.fence)
        other.release(after=work.fence)
    world.driver.follow(failing_every("unmap"))
    outcomes = world.device.port.tend()
    world.healed()
    assert [type(outcome.error) for outcome in outcomes] == [Quarantined, Quarantined]
    assert world.granules("quarantine") == 7


def test_a_close_of_a_device_whose_memory_is_read_by_another_thread_waits_for_it() -> None:
    """Over the plain host driver: `working` says that a thread computes, and nothing is unmapped under it."""
    reading, finish, seen = threading.Event(), threading.Event(), []
    with open_device(memory="1MiB", granule="4KiB") as device:
        memory = device.open(GEOMETRY, max_tokens=256)
        memory.commit(64, memory.grant(64))

        def read() -> None:
            with device.working():
                reading.set()
                finish.wait(30)
                seen.append(digest(memory))

        thread = threading.Thread(target=read)
        thread.start()
        reading.wait(30)
        memory.release(after=device.driver.fence())
        assert device.port.tend() == ()
        assert memory.committed_bytes == 4 * GRANULE
        finish.set()
        thread.join()
        assert len(device.port.tend()) == 1
    assert len(seen) == 1
