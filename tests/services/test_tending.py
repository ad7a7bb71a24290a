"""What a boundary has sent of deferred releases, while its answer is under way: the verbs wait for it, nobody else."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from kvcluster.driver.protocol import PhysicalHandle
from kvcluster.errors import NotAllowed
from kvcluster.services.asks import Grow
from kvcluster.services.memory_state import MemoryState
from kvcluster.services.sequence import SequenceMemory
from kvcluster.services.transport import PendingReply, Transport
from kvcluster.testing.invariants import assert_nothing_lost
from kvcluster.wire.socket import Reclaim
from tests.services.prefixes import M
from tests.services.ways import Way
from tests.services.world import World, digest

Verb = Callable[[SequenceMemory], object]


class LateReply:
    """Never ready; whoever waits for it gets it."""

    def __init__(self, inner: PendingReply) -> None:
        self._inner = inner

    def ready(self) -> bool:
        return False

    def result(self, timeout_s: float) -> bytes:
        return self._inner.result(timeout_s)


class Late(Way):
    """A way to the device whose replies nobody sees but who waits for them."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner

    def send(self, frame: bytes) -> PendingReply:
        return LateReply(self._inner.send(frame))

    def redeem(self, seq: int) -> Sequence[PhysicalHandle]:
        return self._inner.redeem(seq)

    def settled(self, handles: Sequence[PhysicalHandle]) -> None:
        self._inner.settled(handles)

    def pushes(self) -> tuple[Reclaim, ...]:
        return self._inner.pushes()

    def close(self) -> None:
        self._inner.close()


class Work:
    """A fence of work that is over at the second look: a release waits for the next boundary."""

    looks = 0

    def done(self) -> bool:
        self.looks += 1
        return self.looks > 1

    def wait(self) -> None:
        """It is over by then."""


def under_way(world: World) -> SequenceMemory:
    """A memory whose deferred release was sent by a boundary, and not answered."""
    memory = world.grown(M)
    port = world.device.port
    port.exchange.line = Late(port.exchange.line)
    memory.release(after=Work())
    assert port.tend() == ()
    assert memory.in_flight
    return memory


VERBS: dict[str, Verb] = {
    "grant": lambda memory: memory.grant(16),
    "release": lambda memory: memory.release(),
    "deferred release": lambda memory: memory.release(after=Work()),
    "leave": lambda memory: memory.leave(),
    "close": lambda memory: memory.close(),
    "close of a block": lambda memory: memory.__exit__(),
}


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_a_verb_waits_for_what_a_boundary_has_under_way(world: World, verb: str) -> None:
    memory = under_way(world)
    VERBS[verb](memory)
    assert memory.committed_bytes == 0
    first, *_ = world.device.port.tend()  # what became of it is not lost
    assert (first.ask.memory, first.error) == (memory, None)
    assert world.device.port.tend() == ()


def test_a_memory_that_was_under_way_goes_on_and_closes_like_any_other(world: World) -> None:
    memory = under_way(world)
    memory.commit(M, memory.grant(M))
    assert digest(memory)
    memory.close()
    assert memory.state is MemoryState.CLOSED
    assert_nothing_lost(world.device)


def test_publishing_of_what_is_given_back_is_misuse_and_not_an_ask_in_flight(world: World) -> None:
    memory = under_way(world)
    with pytest.raises(ValueError, match="room for 1 to 0"):
        memory.publish(M)


def test_asks_of_many_do_not_wait_and_are_told_to(world: World) -> None:
    memory = under_way(world)
    with pytest.raises(NotAllowed, match="settle it first"):
        world.device.port.submit([Grow(memory, 16)])
    memory.close()


def test_of_several_that_are_under_way_a_verb_on_one_answers_all(world: World) -> None:
    first, second, other = world.grown(16), world.grown(16), world.grown(16)
    port = world.device.port
    port.exchange.line = Late(port.exchange.line)
    first.release(after=Work())
    second.release(after=Work())
    assert port.tend() == ()
    other.commit(32, other.grant(32))  # not under way: nothing is waited for
    assert (first.in_flight, second.in_flight) == (True, True)
    second.close()
    assert not first.in_flight
    assert {outcome.ask.memory for outcome in port.tend()} == {first, second}
