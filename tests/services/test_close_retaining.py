"""What a close leaves for others: the newest prefix that stays is named, with as many tokens as are in it."""

from __future__ import annotations

import pytest

from kvcluster.geometry.layout import Layout
from kvcluster.geometry.model import KvGeometry, LayerGroup
from kvcluster.services.prefix import Prefix
from kvcluster.services.sequence import SequenceMemory, SequenceSpec
from tests.services.prefixes import M, published, sealed_pieces
from tests.services.world import World, digest

RINGS = KvGeometry((LayerGroup((0,), 1, 16), LayerGroup((1,), 1, 16, window_tokens=8)), 4)


@pytest.fixture
def gpu(on_both: str) -> str:
    return on_both


def joined(world: World, prefix: Prefix, tokens: int) -> SequenceMemory:
    memory = world.open()
    memory.join(prefix, tokens)
    return memory


def test_where_nothing_lies_beyond_what_was_published_that_prefix_is_named(world: World) -> None:
    owner = world.grown(M + 5)
    prefix = owner.publish(M)
    content = digest(owner, sealed_pieces(owner))
    assert owner.close(retain_tokens=M + 5) == prefix  # the 5 tokens begin no whole granule of their own
    assert world.granules(f"retained/{prefix.number}") == 5
    joiner = world.open()
    assert joiner.join(prefix, M + 5) == 80
    assert digest(joiner) == content


def test_what_lies_beyond_is_a_prefix_on_top_of_it_and_is_named(world: World) -> None:
    owner = world.grown(128)
    prefix = owner.publish(M)
    retained = owner.close(retain_tokens=128)
    assert retained is not None
    assert (retained.tokens, retained.reusable_tokens) == (128, 127)
    assert retained.number != prefix.number
    assert joined(world, retained, 128).joined_tokens == 127


def test_of_two_that_were_published_the_newer_one_that_lies_inside_is_named(world: World) -> None:
    owner = world.grown(128)
    first, second = owner.publish(40), owner.publish(80)
    third = owner.publish(128)
    witness = joined(world, third, 128)
    assert owner.close(retain_tokens=100) == second
    witness.close()
    assert world.granules("free") == 64 - 5  # the third is gone with its last user, the others stay
    assert joined(world, first, 40).joined_tokens == 32


def test_of_a_prefix_that_reaches_further_nothing_stays_unless_others_use_it(world: World) -> None:
    owner, prefix = published(world)
    witness = joined(world, prefix, M)
    assert owner.close(retain_tokens=48) is None
    assert witness.joined_tokens == 80
    witness.close()
    assert world.granules("free") == 64


def test_who_joined_all_of_a_prefix_leaves_it_with_its_own_tokens(world: World) -> None:
    owner, prefix = published(world)
    joiner = joined(world, prefix, M)
    joiner.commit(M + 5, joiner.grant(M + 5))
    owner.close()
    assert joiner.close(retain_tokens=M + 5) == prefix


def test_who_joined_a_part_of_a_prefix_names_no_more_tokens_than_are_its_own(world: World) -> None:
    """The rest of the prefix is another prompt's: only what both begin with may be said to be this request's."""
    owner, prefix = published(world)
    joiner = joined(world, prefix, 40)  # two whole granules of 16 tokens
    owner.close()
    joiner.commit(47, joiner.grant(47))
    left = joiner.close(retain_tokens=47)
    assert left is not None
    assert (left.number, left.tokens, left.reusable_tokens) == (prefix.number, 32, 31)
    assert joined(world, left, 32).joined_tokens == 31


def test_with_rings_what_was_published_is_named(world: World) -> None:
    memory = world.device.port.memory(SequenceSpec(RINGS, Layout.TOKEN_MAJOR, 600, chunk_tokens=64))
    memory.commit(200, memory.grant(200))
    prefix = memory.publish(130)
    memory.commit(500, memory.grant(500))
    assert memory.close(retain_tokens=450) == prefix
    assert prefix.tokens == 130
    joiner = world.device.port.memory(SequenceSpec(RINGS, Layout.TOKEN_MAJOR, 600, chunk_tokens=64))
    assert joiner.join(prefix, 130) == prefix.reusable_tokens


def test_with_rings_nothing_is_named_where_nothing_was_published(world: World) -> None:
    memory = world.device.port.memory(SequenceSpec(RINGS, Layout.TOKEN_MAJOR, 600, chunk_tokens=64))
    memory.commit(200, memory.grant(200))
    assert memory.close(retain_tokens=150) is None
    assert world.granules("free") == 64


def test_nothing_is_kept_or_named_where_nothing_is_to_be_retained(world: World) -> None:
    owner, _ = published(world)
    assert owner.close() is None
    assert world.granules("free") == 64
