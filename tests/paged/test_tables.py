"""Block tables, one act at a time, without memory: what is copied, what is taken, and what others keep."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from kvcluster.errors import OutOfBlocks
from kvcluster.paged.block_table import BlockTable, BlockTables, Copy
from kvcluster.paged.counts import BlockCounts

SIZE = 4


def _tables(blocks: int) -> BlockTables:
    return BlockTables(BlockCounts(blocks), SIZE)


def _grown(tables: BlockTables, tokens: int) -> BlockTable:
    table = BlockTable()
    tables.settle(tables.grow(table, tokens))
    return table


def test_growth_says_from_which_entry_on_the_table_is_new() -> None:
    tables = _tables(4)
    table = _grown(tables, 5)
    growth = tables.grow(table, 13)
    assert (growth.start, growth.blocks, growth.taken) == (2, tuple(table.blocks[2:]), tuple(table.blocks[2:]))
    assert growth.copies == ()


def test_within_its_last_block_a_table_grows_by_nothing() -> None:
    tables = _tables(1)
    table = _grown(tables, 1)
    growth = tables.grow(table, SIZE)
    assert (growth.start, growth.blocks, growth.copies, len(table.blocks)) == (1, (), (), 1)


def test_out_of_blocks_in_a_fork_cannot_be_and_in_the_write_after_it_is_a_refusal_that_changes_nothing() -> None:
    tables = _tables(2)
    parent = _grown(tables, 6)
    children = tables.fork(parent, 6, 50)
    before = list(parent.blocks)
    with pytest.raises(OutOfBlocks) as refused:
        tables.grow(children[0], 7)
    assert (refused.value.need, refused.value.free) == (1, 0)
    assert parent.blocks == children[0].blocks == before
    assert tables.counts.references(before[0]) == tables.counts.references(before[1]) == 51


def test_only_the_begun_block_is_copied_and_the_last_to_write_keeps_it() -> None:
    tables = _tables(4)
    parent = _grown(tables, 6)
    [child] = tables.fork(parent, 6, 1)
    whole, begun = parent.blocks
    growth = tables.grow(child, 7)
    assert growth.copies == (Copy(begun, child.blocks[1], 2),)
    assert child.blocks[0] == whole
    tables.settle(growth)
    assert tables.grow(parent, 7).copies == ()
    assert parent.blocks == [whole, begun]


def test_a_block_that_an_index_finds_is_not_written_again_by_the_sequence_that_was_cut_into_it() -> None:
    tables = _tables(4)
    table = _grown(tables, 8)
    listed = list(table.blocks)
    for block in listed:
        tables.counts.reside(block)
    tables.truncate(table, 5)
    growth = tables.grow(table, 8)
    assert growth.copies == (Copy(listed[1], table.blocks[1], 1),)
    tables.settle(growth)
    assert tables.counts.is_idle(listed[1])
    assert not tables.counts.is_resident(table.blocks[1])


def test_a_fork_ends_its_parent_there_so_that_it_does_not_write_into_what_others_have_behind() -> None:
    tables = _tables(5)
    parent = _grown(tables, 12)
    [older] = tables.fork(parent, 12, 1)
    tables.fork(parent, 6, 1)
    assert parent.blocks == older.blocks[:2]
    tables.settle(tables.grow(parent, 12))
    assert set(parent.blocks) & set(older.blocks) == {older.blocks[0]}


def test_what_is_lent_is_pinned_until_it_is_copied_or_the_table_ends() -> None:
    for ends in (True, False):
        tables = _tables(3)
        found = _grown(tables, 4)
        [listed] = found.blocks
        tables.counts.reside(listed)
        tables.drop(found)
        table = BlockTable()
        tables.begin(table, [], (listed, 3))
        tables.counts.vacate(listed)
        assert tables.counts.free == 2
        if ends:
            tables.drop(table)
        else:
            growth = tables.grow(table, 5)
            assert growth.copies == (Copy(listed, table.blocks[0], 3),)
            tables.settle(growth)
        assert tables.counts.free == (3 if ends else 1)


def test_a_growth_that_is_undone_lends_again_what_it_would_have_copied() -> None:
    tables = _tables(3)
    found = _grown(tables, 4)
    [listed] = found.blocks
    tables.counts.reside(listed)
    table = BlockTable()
    tables.begin(table, [], (listed, 3))
    for _ in range(2):
        growth = tables.grow(table, 5)
        assert [copy.source for copy in growth.copies] == [listed]
        tables.undo(table, growth)
        assert (table.blocks, table.lends, tables.counts.free) == ([], (listed, 3), 2)
    tables.drop(table)
    assert not tables.counts.is_pinned(listed)


def test_a_growth_is_all_or_nothing_at_every_size_of_the_pool() -> None:
    for blocks in itertools.count(2):
        tables = _tables(blocks)
        parent = _grown(tables, 6)
        [child] = tables.fork(parent, 6, 1)
        before, free = list(child.blocks), tables.counts.free
        try:
            tables.settle(tables.grow(child, 15))
        except OutOfBlocks:
            assert (child.blocks, tables.counts.free) == (before, free)
            continue
        assert blocks == 5  # two that are there, one for the copy, two for what is new
        break


@pytest.mark.parametrize(
    "misuse",
    [
        lambda tables, table: tables.grow(table, 0),
        lambda tables, table: tables.fork(table, 9, 1),
        lambda tables, table: tables.fork(table, 0, 1),
        lambda tables, table: tables.fork(table, 1, 0),
        lambda tables, table: tables.permute([table], [0], 9),
        lambda tables, table: tables.permute([table], [0], 0),
        lambda tables, table: tables.permute([table, table], [0, 1], 1),
        lambda tables, table: tables.permute([table], [1], 1),
        lambda tables, table: tables.permute([table], [], 1),
        lambda tables, table: tables.truncate(table, 9),
        lambda tables, table: tables.truncate(table, -1),
        lambda tables, table: tables.begin(table, [], None),
        lambda tables, table: tables.begin(BlockTable(), [table.blocks[0], -1], None),
        lambda tables, table: tables.begin(BlockTable(), [], (-1, 1)),
        lambda tables, table: tables.begin(BlockTable(), table.blocks, (-1, 1)),
        lambda tables, table: tables.begin(BlockTable(), [], (table.blocks[0], 0)),
        lambda tables, table: tables.begin(BlockTable(), [], (table.blocks[0], SIZE)),
    ],
)
def test_misuse_of_a_table_is_refused_and_changes_nothing(misuse: Callable[[BlockTables, BlockTable], object]) -> None:
    tables = _tables(4)
    table = _grown(tables, 7)
    before = list(table.blocks)
    with pytest.raises(ValueError, match=r"token|block|table|child|parent"):
        misuse(tables, table)
    assert (table.blocks, tables.counts.free) == (before, 2)
    assert [tables.counts.references(block) for block in before] == [1, 1]
    tables.counts.check_invariants()


@pytest.mark.parametrize("size", [0, -16])
def test_blocks_without_tokens_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match="at least 1 token"):
        BlockTables(BlockCounts(1), size)
