"""While its own thread captures a graph no verb begins: it is refused as a whole, nothing changes, and no byte is lost.

What was asked before the capture is settled after it. Afterwards everything works, and all that was created can be
released.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from kvcluster.driver.gate import Meanwhile, capture_gate
from kvcluster.errors import DriverError
from kvcluster.services.asks import Ask, End, Grow, Join, Leave, Publish, Seal, Shed
from kvcluster.services.pending import PendingAsks
from kvcluster.services.prefix import Prefix
from kvcluster.services.sequence import SequenceMemory
from kvcluster.testing.invariants import assert_nothing_lost, picture
from tests.services.prefixes import M, published
from tests.services.world import Sizes, World, digest

OpenWorld = Callable[..., World]
HARDWARE = {"create", "map", "set_access", "unmap", "release", "seal", "scrub", "free_address", "reserve"}


@pytest.fixture
def gpu(on_both: str) -> str:
    return on_both


@pytest.fixture
def world(open_world: OpenWorld) -> World:
    return open_world(Sizes(capacity=32, pool=2))


@dataclass(frozen=True, slots=True)
class Scene:
    """A publisher of a prefix, one that has joined it, one that planned to publish, one that is new."""

    world: World
    owner: SequenceMemory
    prefix: Prefix
    joiner: SequenceMemory
    planner: SequenceMemory
    fresh: SequenceMemory

    @classmethod
    def of(cls, world: World) -> Scene:
        owner, prefix = published(world)
        joiner, planner, fresh = world.open(), world.grown(M), world.open()
        joiner.join(prefix, M)
        fresh.grant(16)
        [plan] = world.device.port.submit([Publish(planner, 64)]).settle()
        assert plan.error is None
        return cls(world, owner, prefix, joiner, planner, fresh)

    def asks(self) -> dict[str, Ask]:
        return {
            "grow": Grow(self.owner, 200),
            "join": Join(self.fresh, self.prefix, M),
            "join and grow": Join(self.fresh, self.prefix, M, 120),
            "seal": Seal(self.planner),
            "leave": Leave(self.joiner),
            "shed": Shed(self.owner),
            "end": End(self.owner),
            "end and retain": End(self.owner, 64),
        }

    def hardware_calls(self) -> dict[str, int]:
        return {name: count for name, count in self.world.driver.calls().items() if name in HARDWARE}

    def send(self, kind: str) -> PendingAsks:
        return self.world.device.port.submit([self.asks()[kind]])

    def end(self) -> None:
        """Everything is given back, and nothing was lost."""
        for memory in self.world.device.port.memories():
            memory.close()
        seen = self.world.device.audit()
        assert set(seen.accounts) <= {"free", f"retained/{self.prefix.number}", "retained/2", "retained/3"}
        self.world.device.close()
        assert_nothing_lost(self.world.device)
        assert self.world.driver.memory_info().held_bytes == 0


KINDS = ["grow", "join", "join and grow", "seal", "leave", "shed", "end", "end and retain"]


def captured(act: Callable[[], object]) -> str:
    """`act` in a capture of this thread is refused; the name of what was."""
    with capture_gate.closed(Meanwhile.REFUSE), pytest.raises(DriverError, match="EBUSY") as caught:
        act()
    return caught.value.call


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_asked_in_a_capture_is_refused_and_changes_nothing(world: World, kind: str) -> None:
    scene = Scene.of(world)
    before, content, calls = picture(world.device), digest(scene.owner), scene.hardware_calls()
    assert captured(lambda: scene.send(kind)) == "submit"
    assert (picture(world.device), digest(scene.owner), scene.hardware_calls()) == (before, content, calls)
    [outcome] = scene.send(kind).settle()
    assert outcome.error is None
    scene.end()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_answered_in_a_capture_is_settled_after_it(world: World, kind: str) -> None:
    scene = Scene.of(world)
    pending = scene.send(kind)
    before, calls = picture(world.device), scene.hardware_calls()
    assert captured(pending.settle) == "settle"
    assert (picture(world.device), scene.hardware_calls()) == (before, calls)
    [outcome] = pending.settle()
    assert outcome.error is None
    scene.end()


def test_nothing_is_evicted_in_a_capture(open_world: OpenWorld) -> None:
    world = open_world(Sizes(capacity=16, pool=2))
    prefix = world.grown(256).close(retain_tokens=256)
    assert prefix is not None
    memory = world.open()
    before = picture(world.device)
    assert captured(lambda: memory.grant(256)) == "grant"
    assert picture(world.device) == before
    memory.commit(256, memory.grant(256))
    memory.close()
    assert_nothing_lost(world.device)


def test_a_session_does_not_end_in_a_capture(world: World) -> None:
    world.grown(200).close()
    before = picture(world.device)
    assert captured(world.device.port.close) == "close"
    assert picture(world.device) == before
    world.device.port.close()
    assert_nothing_lost(world.device)


def test_a_device_is_not_closed_in_a_capture(world: World) -> None:
    memory = world.grown(40)
    before, content = picture(world.device), digest(memory)
    assert captured(world.device.close) == "close"
    assert (picture(world.device), digest(memory)) == (before, content)
    world.device.close()
    assert_nothing_lost(world.device)
