"""Counts of blocks: who has them, when they are free, and what misuse leaves behind."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcluster.errors import KvClusterError, OutOfBlocks
from kvcluster.paged.block_pool import BlockPool
from kvcluster.paged.counts import BlockCounts, block_id, generation_of, number_of


def test_the_block_that_came_back_last_goes_out_first() -> None:
    counts = BlockCounts(4)
    first, second = counts.allocate(2)
    counts.drop([first])
    counts.drop([second])
    assert [number_of(block) for block in counts.allocate(2)] == [number_of(second), number_of(first)]


def test_blocks_of_a_new_pool_lie_side_by_side() -> None:
    assert [number_of(block) for block in BlockCounts(5).allocate(5)] == [0, 1, 2, 3, 4]


def test_a_block_is_free_only_when_it_has_neither_reference_nor_pin_nor_residence() -> None:
    counts = BlockCounts(1)
    [block] = counts.allocate(1)
    counts.pin(block)
    counts.reside(block)
    counts.drop([block])
    assert counts.free == 0
    counts.vacate(block)
    assert counts.free == 0
    counts.unpin(block)
    assert counts.free == 1
    counts.check_invariants()


def test_a_block_that_is_pinned_is_not_handed_out() -> None:
    counts = BlockCounts(2)
    kept, other = counts.allocate(2)
    counts.pin(kept)
    counts.drop([kept, other])
    assert [number_of(block) for block in counts.allocate(1)] == [number_of(other)]
    with pytest.raises(OutOfBlocks):
        counts.allocate(1)


def test_a_block_that_is_used_again_has_another_generation_and_its_old_id_is_refused() -> None:
    counts = BlockCounts(1)
    [old] = counts.allocate(1)
    counts.drop([old])
    [new] = counts.allocate(1)
    assert number_of(new) == number_of(old)
    assert generation_of(new) == generation_of(old) + 1
    for misuse in (lambda: counts.drop([old]), lambda: counts.reference([old]), lambda: counts.pin(old)):
        with pytest.raises(ValueError, match="generation"):
            misuse()
    assert counts.references(new) == 1


@pytest.mark.parametrize("twice", ["in one list", "in two calls"])
def test_a_block_freed_twice_is_refused_and_reaches_no_second_owner(twice: str) -> None:
    counts = BlockCounts(3)
    block, other = counts.allocate(2)
    if twice == "in one list":
        with pytest.raises(ValueError, match="so often"):
            counts.drop([other, block, block])
        assert counts.references(block) == counts.references(other) == 1
        counts.drop([block])
    else:
        counts.drop([block])
        with pytest.raises(ValueError, match="is gone"):
            counts.drop([block])
    counts.check_invariants()
    taken = [number_of(b) for b in counts.allocate(2)]
    assert len(set(taken)) == 2
    assert number_of(other) not in taken


def test_more_blocks_than_are_free_are_refused_with_both_figures_and_none_is_taken() -> None:
    counts = BlockCounts(3)
    with pytest.raises(OutOfBlocks) as refused:
        counts.allocate(4)
    assert (refused.value.need, refused.value.free, counts.free) == (4, 3, 3)


def test_a_refusal_for_lack_of_blocks_is_a_memory_error_and_survives_pickling() -> None:
    refused = pickle.loads(pickle.dumps(OutOfBlocks(need=2, free=1)))
    assert isinstance(refused, MemoryError)
    assert isinstance(refused, KvClusterError)
    assert (refused.need, refused.free) == (2, 1)


@pytest.mark.parametrize(
    "misuse",
    [
        lambda counts, block: counts.drop([block_id(99, 0)]),
        lambda counts, block: counts.reference([block, block_id(1, 7)]),
        lambda counts, block: counts.reference([block, block_id(1, 0)]),
        lambda counts, block: counts.pin(block_id(1, 0)),
        lambda counts, block: counts.unpin(block),
        lambda counts, block: counts.vacate(block),
        lambda counts, block: (counts.reside(block), counts.reside(block)),
        lambda counts, block: counts.references(block_id(1, 0)),
        lambda counts, block: counts.allocate(-1),
        lambda counts, block: counts.drop([-1]),
    ],
)
def test_misuse_is_refused_and_changes_no_reference(misuse: Callable[[BlockCounts, int], object]) -> None:
    counts = BlockCounts(3)
    [block] = counts.allocate(1)
    with pytest.raises(ValueError, match="block"):
        misuse(counts, block)
    assert (counts.references(block), counts.free, counts.is_pinned(block)) == (1, 2, False)
    counts.check_invariants()


@pytest.mark.parametrize("blocks", [0, -1])
def test_a_pool_without_blocks_is_refused(blocks: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        BlockCounts(blocks)


def test_an_id_of_another_pool_of_the_process_is_refused() -> None:
    with BlockPool(2, 4, 1, 1, 2) as ours, BlockPool(2, 4, 1, 1, 2) as theirs:
        block, foreign = ours.allocate_block(), theirs.allocate_block()
        assert number_of(block) == number_of(foreign)
        with pytest.raises(ValueError, match="block"):
            ours.free_block(foreign)
        with pytest.raises(ValueError, match="block"):
            theirs.counts.reference([foreign, block])
        assert ours.free_blocks == theirs.free_blocks == theirs.counts.references(foreign) == 1


def test_a_key_that_an_index_kept_too_long_does_not_name_the_blocks_next_owner() -> None:
    counts = BlockCounts(1)
    [old] = counts.allocate(1)
    counts.reside(old)
    counts.drop([old])
    counts.vacate(old)
    [new] = counts.allocate(1)
    assert number_of(old) == number_of(new)
    assert not counts.is_had(old)
    for use in (lambda: counts.reference([old]), lambda: counts.pin(old), lambda: counts.references(old)):
        with pytest.raises(ValueError, match="is gone"):
            use()
    assert (counts.references(new), counts.is_pinned(new)) == (1, False)


@pytest.mark.parametrize("given_up", ["before it was used", "after it was used"])
def test_a_pin_given_up_at_any_point_leaves_no_block_behind(given_up: str) -> None:
    counts = BlockCounts(2)
    [found] = counts.allocate(1)
    counts.reside(found)
    counts.drop([found])
    counts.pin(found)
    if given_up == "after it was used":
        counts.reference([found])
        counts.drop([found])
    counts.unpin(found)
    assert counts.is_idle(found)
    counts.vacate(found)
    assert counts.free == 2
    counts.check_invariants()


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=60))
def test_nothing_is_refused_while_enough_is_free_whatever_came_and_went_before(acts: list[tuple[bool, int]]) -> None:
    counts = BlockCounts(16)
    held: list[list[int]] = []
    for takes, size in acts:
        if takes and size <= counts.free:
            held.append(counts.allocate(size))
        elif held:
            counts.drop(held.pop(size % len(held)))
    assert len(counts.allocate(counts.free)) + sum(map(len, held)) == 16
    assert len({number_of(block) for blocks in held for block in blocks}) == sum(map(len, held))
    counts.check_invariants()
