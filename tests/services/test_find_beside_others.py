"""Finds that cost nothing, that go together, or whose bytes arrive in two steps; and what leaves nothing to find."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvcluster.errors import DriverError, Quarantined
from kvcluster.geometry.layout import Layout
from kvcluster.index.token_chain import packed
from kvcluster.services.asks import Find, Outcome
from kvcluster.services.sequence import SequenceMemory, SequenceSpec
from kvcluster.testing.faulty_driver import failing_every, failing_named
from kvcluster.testing.invariants import picture
from tests.services.prefixes import M, sealed_pieces
from tests.services.rings import CHUNK, GEOMETRY, compute, wrong_rows
from tests.services.world import Sizes, World, digest, fill

OpenWorld = Callable[..., World]
ROOT = b"r" * 32
IDS = range(1000, 1400)


@pytest.fixture
def gpu(on_both: str) -> str:
    return on_both


def written(world: World, tokens: int = M) -> SequenceMemory:
    """One that found nothing, with a pattern in every byte of so many tokens."""
    memory = world.open(cache_root=ROOT)
    assert memory.find(IDS[:tokens], tokens) == 0
    fill(memory)
    return memory


def ringed(world: World) -> SequenceMemory:
    spec = SequenceSpec(GEOMETRY, Layout.TOKEN_MAJOR, 400, chunk_tokens=CHUNK, cache_root=ROOT)
    return world.device.port.memory(spec)


def found(world: World, memory: SequenceMemory, tokens: int) -> Outcome:
    [outcome] = world.device.port.submit([Find(memory, packed(IDS[:tokens]), tokens)]).settle()
    return outcome


@pytest.mark.parametrize("grow_to", [16, 64, 80])
def test_a_find_that_needs_nothing_of_its_own_costs_nothing(world: World, grow_to: int) -> None:
    owner = written(world)
    owner.publish(M)
    finder, before = world.open(cache_root=ROOT), dict(world.device.audit().accounts)
    assert finder.find(IDS[:80], grow_to) == 79  # its last token is to be computed
    assert (finder.tokens, finder.committed_bytes) == (80, 0)
    assert dict(world.device.audit().accounts) == before
    assert digest(finder) == digest(owner, sealed_pieces(owner))


def test_many_find_the_same_in_one_frame_and_one_redemption(world: World) -> None:
    owner = written(world)
    owner.publish(M)
    traffic, finders = world.device.port.exchange.traffic, [world.open(cache_root=ROOT) for _ in range(3)]
    messages, redemptions = traffic.control_messages, traffic.redemptions
    outcomes = world.device.port.submit([Find(finder, packed(IDS[:M]), 96) for finder in finders]).settle()
    assert [(outcome.error, outcome.joined_tokens, outcome.known_tokens) for outcome in outcomes] == [(None, 80, M)] * 3
    assert (traffic.control_messages, traffic.redemptions) == (messages + 2, redemptions + 1)
    assert len({digest(memory, sealed_pieces(memory)) for memory in (owner, *finders)}) == 1


def test_an_end_that_could_not_unmap_leaves_nothing_to_find(world: World) -> None:
    memory = written(world)
    world.driver.follow(failing_every("unmap"))
    with pytest.raises(Quarantined):
        memory.close(retain_tokens=M)
    world.healed()
    assert world.device.audit().listed_prefixes == 0
    assert world.open(cache_root=ROOT).find(IDS[:M], M) == 0


def test_when_the_rings_beside_it_cannot_be_mapped_their_window_comes_with_the_next_commit(world: World) -> None:
    owner = ringed(world)
    assert found(world, owner, 200).error is None
    compute(owner, 0, 192)
    owner.publish(192)
    finder, before = ringed(world), picture(world.device).accounts
    world.driver.follow(failing_named("set_access", 4))
    outcome = found(world, finder, 200)
    world.healed()
    assert isinstance(outcome.error, DriverError)
    assert outcome.joined_tokens == finder.joined_tokens > 0
    assert picture(world.device).accounts == before  # it has joined, and has nothing of its own
    finder.commit(200, finder.grant(200))
    assert wrong_rows(finder, outcome.joined_tokens) == []


def test_what_could_not_be_sealed_takes_no_room_in_the_reply_of_a_find(open_world: OpenWorld) -> None:
    world = open_world(Sizes(most_runs=1))
    written(world, 64).close(retain_tokens=64)
    finder = world.open(cache_root=ROOT)
    world.driver.follow(failing_every("seal"))
    assert found(world, finder, 128) == Outcome(Find(finder, packed(IDS[:128]), 128))  # as if nothing were known
    world.healed()
    assert (finder.tokens, finder.shared_bytes) == (128, 0)
