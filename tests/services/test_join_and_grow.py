"""A join and a growth in one group: the device says how much the growth is, because it knows how far handles reach."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvcluster.errors import OutOfBudget
from kvcluster.services.asks import Join, Outcome
from kvcluster.services.prefix import Prefix
from kvcluster.services.sequence import SequenceMemory
from tests.services.prefixes import sealed_pieces
from tests.services.world import GRANULE, Sizes, World, digest

OpenWorld = Callable[..., World]


@pytest.fixture
def gpu(on_both: str) -> str:
    return on_both


def join_and_grow(world: World, memory: SequenceMemory, prefix: Prefix, tokens: int, *, grow_to: int) -> Outcome:
    [outcome] = world.device.port.submit([Join(memory, prefix, tokens, grow_to=grow_to)]).settle()
    return outcome


@pytest.mark.parametrize(("tokens", "grow_to"), [(100, 112), (100, 100), (96, 96), (100, 256), (128, 129), (128, 200)])
def test_who_joins_a_part_that_ends_inside_a_bulk_handle_gets_the_rest_as_its_own(
    open_world: OpenWorld, tokens: int, grow_to: int
) -> None:
    """With handles of four granules: as far as 96 tokens six granules are shared, and only four can be joined."""
    world = open_world(Sizes(bulk=4))
    owner = world.grown(256)
    prefix = owner.publish(256)
    joiner = world.open()
    outcome = join_and_grow(world, joiner, prefix, tokens, grow_to=grow_to)
    assert (outcome.error, outcome.joined_tokens) == (None, joiner.joined_tokens)
    assert joiner.tokens >= grow_to
    assert joiner.shared_bytes == tokens // 64 * 4 * GRANULE
    shape = joiner.holdings.shape
    assert joiner.committed_bytes == shape.committed_bytes(grow_to) - joiner.shared_bytes
    assert digest(joiner, sealed_pieces(joiner)) == digest(owner, _like(joiner, owner))
    assert world.granules("granted") == 0


def _like(joiner: SequenceMemory, owner: SequenceMemory) -> list[tuple[int, int]]:
    """The same places in the owner's address."""
    return [(address - joiner.address + owner.address, size) for address, size in sealed_pieces(joiner)]


def test_a_growth_that_needs_nothing_beside_its_join_is_given_on_a_full_device(world: World) -> None:
    owner = world.grown(64, max_tokens=64)
    prefix = owner.publish(64)
    other = world.open(60 * 16)
    other.commit(60 * 16, other.grant(60 * 16))
    assert world.granules("free") == 0
    joiner = world.open()
    outcome = join_and_grow(world, joiner, prefix, 64, grow_to=64)
    assert (outcome.error, joiner.tokens, joiner.committed_bytes) == (None, 64, 0)
    refused = join_and_grow(world, world.open(), prefix, 64, grow_to=65)
    assert isinstance(refused.error, OutOfBudget)
    assert (refused.error.need, refused.joined_tokens) == (GRANULE, 0)
