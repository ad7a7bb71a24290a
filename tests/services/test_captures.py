"""While a graph is captured no verb reaches the hardware: it is refused, or done without, and no byte is lost for it.

What was asked before the capture and is answered in it is not mapped and goes back. What would be released waits.
Afterwards everything works, and everything that was created can be released.
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
        scene = cls(world, owner, prefix, joiner, planner, fresh)
        scene.plan()
        return scene

    def plan(self) -> None:
        """Of the planner's prefix; it is given up where its windows cannot be unmapped."""
        if self.planner.holdings.publication is None:
            [outcome] = self.world.device.port.submit([Publish(self.planner, 64)]).settle()
            assert outcome.error is None

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


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_asked_in_a_capture_is_refused_and_changes_nothing(world: World, kind: str) -> None:
    scene = Scene.of(world)
    before, content, calls = picture(world.device), digest(scene.owner), scene.hardware_calls()
    with capture_gate.closed(Meanwhile.REFUSE):
        [outcome] = scene.send(kind).settle()
    assert isinstance(outcome.error, DriverError)
    assert outcome.error.name == "EBUSY"
    assert (picture(world.device), digest(scene.owner), scene.hardware_calls()) == (before, content, calls)
    scene.plan()
    [outcome] = scene.send(kind).settle()
    assert outcome.error is None
    scene.end()


@pytest.mark.parametrize("kind", ["grow", "join", "join and grow", "seal"])
def test_what_is_answered_in_a_capture_is_not_mapped_and_goes_back(world: World, kind: str) -> None:
    scene = Scene.of(world)
    pending = scene.send(kind)
    with capture_gate.closed(Meanwhile.REFUSE):
        [outcome] = pending.settle()
    assert isinstance(outcome.error, DriverError)
    assert "quarantine" not in world.device.audit().accounts
    world.grown(16).close()
    scene.end()


def test_what_is_evicted_in_a_capture_is_free_and_can_be_committed_after_it(open_world: OpenWorld) -> None:
    world = open_world(Sizes(capacity=16, pool=2))
    first = world.grown(256)
    prefix = first.close(retain_tokens=256)
    assert prefix is not None
    world.open().join(prefix, 256)  # which seals it
    world.device.port.memories()[0].release()
    memory = world.open()
    with capture_gate.closed(Meanwhile.REFUSE):
        grant = memory.grant(256)
        with pytest.raises(DriverError, match="EBUSY"):
            memory.commit(256, grant)
    assert "quarantine" not in world.device.audit().accounts
    memory.commit(256, grant)
    for memory in world.device.port.memories():
        memory.close()
    assert_nothing_lost(world.device)


def test_a_session_that_ends_in_a_capture_loses_nothing(world: World) -> None:
    world.grown(200).close()
    with capture_gate.closed(Meanwhile.REFUSE):
        world.device.port.close()
    assert_nothing_lost(world.device)
    world.service.close()
    assert world.driver.memory_info().held_bytes == 0


def test_a_device_is_not_closed_in_a_capture(world: World) -> None:
    memory = world.grown(40)
    before, content = picture(world.device), digest(memory)
    with capture_gate.closed(Meanwhile.REFUSE), pytest.raises(DriverError, match=r"close .* EBUSY"):
        world.device.close()
    assert (picture(world.device), digest(memory)) == (before, content)
    world.device.close()
    assert_nothing_lost(world.device)
