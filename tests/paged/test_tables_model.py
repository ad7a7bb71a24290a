"""Tables that grow, fork, move, end and begin with what was found: nobody's written tokens ever change. No memory here.

Blocks hold plain lists, copies are made as they are told, or fail and are undone. Whatever is read by way of a table,
or by way of the index, is what was written there by whoever had it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from kvcluster.errors import OutOfBlocks
from kvcluster.paged.block_table import BlockTable, BlockTables, Growth
from kvcluster.paged.counts import BlockCounts, number_of
from tests.examples import examples

SIZE = 4


@dataclass(slots=True, eq=False)
class Written:
    """A table, and the tokens that were written by way of it."""

    table: BlockTable = field(default_factory=BlockTable)
    tokens: list[int] = field(default_factory=list)


class TablesMachine(RuleBasedStateMachine):
    written = Bundle("written")

    @initialize(blocks=st.integers(2, 16))
    def begin(self, blocks: int) -> None:
        self.counts = BlockCounts(blocks)
        self.tables = BlockTables(self.counts, SIZE)
        self.memory = [[0] * SIZE for _ in range(blocks)]
        self.open_ones: list[Written] = []
        self.found: dict[int, list[int]] = {}  # what an index says is in a block
        self.chains: list[list[int]] = []
        self.next_token = 1

    def teardown(self) -> None:
        if hasattr(self, "counts"):
            for one in self.open_ones:
                self.tables.drop(one.table)
            for block in self.found:
                self.counts.vacate(block)
            assert self.counts.free == self.counts.num_blocks
            self.counts.check_invariants()

    @rule(target=written)
    def open(self) -> Written:
        return self._opened(Written())

    @rule(one=written, count=st.integers(1, 2 * SIZE + 1))
    def write(self, one: Written, count: int) -> None:
        after = len(one.tokens) + count
        free, missing = self.counts.free, self.tables.missing(one.table, after)
        if missing > free:
            with pytest.raises(OutOfBlocks) as refused:
                self.tables.grow(one.table, after)
            assert (refused.value.need, refused.value.free, self.counts.free) == (missing, free, free)
            return
        growth = self.tables.grow(one.table, after)
        assert free - self.counts.free == len(growth.taken) == missing
        self._copy(growth)
        self.tables.settle(growth)
        for at in range(len(one.tokens), after):
            block = one.table.blocks[at // SIZE]
            is_alone = self.counts.references(block) == 1 and block not in self.found
            assert is_alone, f"{block} is written, and others have it"
            self.memory[number_of(block)][at % SIZE] = self.next_token
            one.tokens.append(self.next_token)
            self.next_token += 1

    @rule(one=written, count=st.integers(1, 2 * SIZE))
    def grow_and_undo(self, one: Written, count: int) -> None:
        blocks, lends, free = list(one.table.blocks), one.table.lends, self.counts.free
        try:
            growth = self.tables.grow(one.table, len(one.tokens) + count)
        except OutOfBlocks:
            return
        self.tables.undo(one.table, growth)
        assert (one.table.blocks, one.table.lends, self.counts.free) == (blocks, lends, free)

    @rule(target=written, parent=written, data=st.data(), n=st.integers(1, 3))
    def fork(self, parent: Written, data: st.DataObject, n: int) -> object:
        most = min(len(parent.tokens), self.tables.room(parent.table))
        if not most:
            return multiple()
        tokens, free = data.draw(st.integers(1, most)), self.counts.free
        children = self.tables.fork(parent.table, tokens, n)
        assert self.counts.free >= free
        del parent.tokens[tokens:]
        return multiple(*[self._opened(Written(child, list(parent.tokens))) for child in children])

    @rule(members=st.lists(written, min_size=1, max_size=4, unique_by=id), data=st.data())
    def permute(self, members: list[Written], data: st.DataObject) -> None:
        most = min(min(len(one.tokens), self.tables.room(one.table)) for one in members)
        if not most:
            return
        tokens = data.draw(st.integers(1, most))
        parents = [data.draw(st.integers(0, len(members) - 1)) for _ in members]
        before = [list(one.tokens) for one in members]
        self.tables.permute([one.table for one in members], parents, tokens)
        for one, parent in zip(members, parents, strict=True):
            one.tokens = before[parent][:tokens]

    @rule(one=written, data=st.data())
    def truncate(self, one: Written, data: st.DataObject) -> None:
        tokens = data.draw(st.integers(0, min(len(one.tokens), self.tables.room(one.table))))
        self.tables.truncate(one.table, tokens)
        del one.tokens[tokens:]

    @rule(one=consumes(written))
    def drop(self, one: Written) -> None:
        self.tables.drop(one.table)
        self.open_ones.remove(one)

    @rule(one=written)
    def list_written(self, one: Written) -> None:
        whole = min(len(one.tokens) // SIZE, len(one.table.blocks))
        chain = one.table.blocks[:whole]
        for at, block in enumerate(chain):
            if block not in self.found:
                self.counts.reside(block)
                self.found[block] = one.tokens[at * SIZE : (at + 1) * SIZE]
        self.chains.append(chain)

    @rule(target=written, data=st.data())
    def find(self, data: st.DataObject) -> object:
        known = [chain for chain in self.chains if chain and all(block in self.found for block in chain)]
        if not known:
            return multiple()
        chain = data.draw(st.sampled_from(known))
        whole = data.draw(st.integers(0, len(chain)))
        part = data.draw(st.integers(0, SIZE - 1)) if whole < len(chain) else 0
        one = self._opened(Written())
        self.tables.begin(one.table, chain[:whole], (chain[whole], part) if part else None)
        one.tokens = [token for block in chain for token in self.found[block]][: whole * SIZE + part]
        return one

    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        idle = [block for block in self.found if self.counts.is_idle(block)]
        if idle:
            block = data.draw(st.sampled_from(idle))
            self.counts.vacate(block)
            del self.found[block]

    @invariant()
    def everybody_reads_what_was_written(self) -> None:
        if not hasattr(self, "counts"):
            return
        self.counts.check_invariants()
        assert sum(len(one.table.blocks) for one in self.open_ones) == self.counts.references_in_all
        for one in self.open_ones:
            assert self._read(one) == one.tokens
        for block, tokens in self.found.items():
            assert self.memory[number_of(block)] == tokens

    def _opened(self, one: Written) -> Written:
        self.open_ones.append(one)
        return one

    def _copy(self, growth: Growth) -> None:
        for copy in growth.copies:
            source, target = self.memory[number_of(copy.source)], self.memory[number_of(copy.target)]
            target[: copy.tokens] = source[: copy.tokens]

    def _read(self, one: Written) -> list[int]:
        lent = [] if one.table.lends is None else self.memory[number_of(one.table.lends[0])]
        rows = [row for block in one.table.blocks for row in self.memory[number_of(block)]]
        return [*rows, *lent][: len(one.tokens)]


TestTables = TablesMachine.TestCase
TestTables.settings = settings(max_examples=examples(150), stateful_step_count=30, deadline=None)
