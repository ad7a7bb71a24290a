"""A paged cache against plain lists: no write reaches a parent or a sibling, whatever fails on the way."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvcluster.errors import OutOfBlocks
from kvcluster.paged.cache import PagedKvCache
from tests.examples import examples
from tests.paged.paged_model import SIZE, rows, small_pool, values_of


class CopyFailed(Exception):
    pass


class PagedCacheMachine(RuleBasedStateMachine):
    @initialize(blocks=st.integers(2, 14))
    def begin(self, blocks: int) -> None:
        self.opened = ExitStack()
        self.pool = self.opened.enter_context(small_pool(blocks))
        self.cache = PagedKvCache(self.pool)
        self.model: dict[int, list[int]] = {}
        self.next_value = 1

    def teardown(self) -> None:
        if hasattr(self, "opened"):
            for sequence in self.model:
                self.cache.drop(sequence)
            assert self.pool.free_blocks == self.pool.counts.num_blocks
            self.opened.close()

    @rule()
    def open(self) -> None:
        self.model[self.cache.open()] = []

    @precondition(lambda self: self.model)
    @rule(data=st.data(), count=st.integers(1, 2 * SIZE + 1))
    def append(self, data: st.DataObject, count: int) -> None:
        sequence = data.draw(st.sampled_from(sorted(self.model)))
        self._append(sequence, count)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def append_while_a_copy_fails(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(sorted(self.model)))
        store, free = self.pool.store, self.pool.free_blocks
        honest = store.copy_tokens

        def failing(*_: Any) -> None:
            raise CopyFailed

        store.copy_tokens = failing  # type: ignore[method-assign]
        try:
            self._append(sequence, 1)
        except CopyFailed:
            assert self.pool.free_blocks == free
        finally:
            store.copy_tokens = honest  # type: ignore[method-assign]

    @precondition(lambda self: any(self.model.values()))
    @rule(data=st.data(), n=st.integers(1, 3))
    def fork(self, data: st.DataObject, n: int) -> None:
        parent = data.draw(st.sampled_from(sorted(s for s, held in self.model.items() if held)))
        free = self.pool.free_blocks
        for child in self.cache.fork(parent, n):
            self.model[child] = list(self.model[parent])
        assert self.pool.free_blocks == free

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(sorted(self.model)))
        self.cache.drop(sequence)
        del self.model[sequence]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(sorted(self.model)))
        tokens = data.draw(st.integers(0, len(self.model[sequence])))
        self.cache.truncate(sequence, tokens)
        del self.model[sequence][tokens:]

    @precondition(lambda self: any(self.model.values()))
    @rule(data=st.data())
    def reorder(self, data: st.DataObject) -> None:
        length = len(data.draw(st.sampled_from([held for held in self.model.values() if held])))
        beams = [sequence for sequence, held in self.model.items() if len(held) == length]
        parents = data.draw(st.lists(st.integers(0, len(beams) - 1), min_size=len(beams), max_size=len(beams)))
        before = [self.model[beam] for beam in beams]
        self.cache.reorder(beams, parents)
        for beam, parent in zip(beams, parents, strict=True):
            self.model[beam] = list(before[parent])

    @invariant()
    def every_sequence_holds_what_was_written_to_it(self) -> None:
        if hasattr(self, "model"):
            self.cache.check_invariants()
            for sequence, held in self.model.items():
                assert values_of(self.cache, sequence) == held

    def _append(self, sequence: int, count: int) -> None:
        values = list(range(self.next_value, self.next_value + count))
        self.next_value += count
        free, refused = self.pool.free_blocks, None
        try:
            self.cache.append(sequence, *rows(values))
        except OutOfBlocks as error:
            refused = error
        if refused is None:
            self.model[sequence] += values
        else:
            assert refused.need > refused.free
            assert refused.free == free == self.pool.free_blocks


TestPagedCache = PagedCacheMachine.TestCase
TestPagedCache.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
