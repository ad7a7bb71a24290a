"""Prompts with sliding windows, found by their tokens: who is told to publish, and where others go on."""

from __future__ import annotations

import pytest

from kvcluster.geometry.layout import Layout
from kvcluster.index.token_chain import packed
from kvcluster.services.asks import Find, Outcome, Publish, Seal, TakeSnapshot
from kvcluster.services.sequence import SequenceMemory, SequenceSpec
from tests.services.rings import CHUNK, GEOMETRY, compute, compute_behind, opened, wrong_rows
from tests.services.world import World

M = 200  # several laps of the ring

ROOT, IDS = b"r" * 32, range(9000, 9400)


@pytest.fixture
def gpu(on_both: str) -> str:
    return on_both


def looking(world: World) -> SequenceMemory:
    return world.device.port.memory(
        SequenceSpec(GEOMETRY, Layout.TOKEN_MAJOR, 400, chunk_tokens=CHUNK, cache_root=ROOT)
    )


def found(world: World, memory: SequenceMemory, tokens: int) -> Outcome:
    [outcome] = world.device.port.submit([Find(memory, packed(IDS[:tokens]), tokens)]).settle()
    assert outcome.error is None
    return outcome


def test_the_second_with_a_prompt_is_told_how_much_is_known_publishes_there_and_the_third_joins(world: World) -> None:
    first, second, third = looking(world), looking(world), looking(world)
    assert found(world, first, M).known_tokens == 0
    compute(first, 0, M)
    first.close()
    outcome = found(world, second, 350)
    assert (outcome.known_tokens, outcome.joined_tokens) == (192, 0)
    compute(second, 0, 192)
    asks = second.publication(192, written=192)
    assert [type(ask) for ask in asks] == [TakeSnapshot, Publish, Seal]
    for ask in asks:
        [done] = world.device.port.submit([ask]).settle()
        assert done.error is None
    outcome = found(world, third, 300)
    assert outcome.joined_tokens == third.joined_tokens == boundary(world)
    assert wrong_rows(third, third.joined_tokens) == []
    second.close()
    third.close()
    assert {name.partition("/")[0] for name in world.device.audit().accounts} == {"free", "retained"}


def boundary(world: World) -> int:
    """Where the only prefix of the device is joined."""
    shape = opened(world).holdings.shape
    return shape.reusable_tokens(shape.shared_windows(192), 192)


def test_boundaries_of_one_prompt_are_published_upon_each_other_and_each_is_found(world: World) -> None:
    owner = looking(world)
    found(world, owner, 400)
    for stop in (100, 200, 300):
        compute_behind(owner, stop - 100, stop)
        assert owner.publish(stop).tokens == stop
    joined = []
    for tokens in (110, 250, 380):
        late = looking(world)
        joined.append(found(world, late, tokens).joined_tokens)
        assert wrong_rows(late, joined[-1]) == []
        late.close()
    assert joined == sorted(set(joined))
    assert all(stop - 21 < tokens <= stop for stop, tokens in zip((100, 200, 300), joined, strict=True))
    owner.close()
    assert found(world, looking(world), 380).joined_tokens == joined[-1]


def test_a_boundary_that_was_passed_shares_nothing_and_asks_nothing(world: World) -> None:
    memory = looking(world)
    found(world, memory, 400)
    compute(memory, 0, 300)
    assert memory.publication(100, written=300) == ()
