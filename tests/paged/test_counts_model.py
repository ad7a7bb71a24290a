"""Counts of blocks against plain lists of who has what, with right acts and wrong ones in any order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvcluster.errors import OutOfBlocks
from kvcluster.paged.counts import BlockCounts, generation_of, number_of
from tests.examples import examples

BLOCKS = 6


class CountsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.counts = BlockCounts(BLOCKS, generation=5)
        self.referenced: list[int] = []  # once a reference
        self.pinned: list[int] = []
        self.resident: set[int] = set()
        self.gone: list[int] = []
        self.free = list(range(BLOCKS - 1, -1, -1))

    @rule(count=st.integers(0, BLOCKS))
    def allocate(self, count: int) -> None:
        if count > len(self.free):
            with pytest.raises(OutOfBlocks):
                self.counts.allocate(count)
            return
        taken = self.counts.allocate(count)
        assert [number_of(block) for block in taken] == [self.free.pop() for _ in range(count)]
        assert not set(taken) & set(self.gone)
        self.referenced += taken

    @rule(data=st.data())
    def reference(self, data: st.DataObject) -> None:
        blocks = self._some(data, self._had())
        self.counts.reference(blocks)
        self.referenced += blocks

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        blocks = data.draw(st.lists(st.sampled_from(self.referenced), max_size=5)) if self.referenced else []
        if any(blocks.count(block) > self.referenced.count(block) for block in blocks):
            self._refused(lambda: self.counts.drop(blocks))
            return
        self.counts.drop(blocks)
        for block in blocks:
            self.referenced.remove(block)
        self._free_left(list(dict.fromkeys(blocks)))

    @precondition(lambda self: self._had())
    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self._had()))
        self.counts.pin(block)
        self.pinned.append(block)

    @precondition(lambda self: self.pinned)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self.pinned))
        self.counts.unpin(block)
        self.pinned.remove(block)
        self._free_left([block])

    @precondition(lambda self: set(self._had()) - self.resident)
    @rule(data=st.data())
    def reside(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from([block for block in self._had() if block not in self.resident]))
        self.counts.reside(block)
        self.resident.add(block)

    @precondition(lambda self: self.resident)
    @rule(data=st.data())
    def vacate(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.resident)))
        self.counts.vacate(block)
        self.resident.remove(block)
        self._free_left([block])

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def name_one_that_is_gone(self, data: st.DataObject) -> None:
        stale = data.draw(st.sampled_from(self.gone))
        counts, others = self.counts, self._some(data, self._had())
        for misuse in (
            lambda: counts.reference([*others, stale]),
            lambda: counts.drop([*others, stale]),
            lambda: counts.pin(stale),
            lambda: counts.unpin(stale),
            lambda: counts.reside(stale),
            lambda: counts.vacate(stale),
        ):
            self._refused(misuse)

    @invariant()
    def everybody_has_what_he_took(self) -> None:
        counts, had = self.counts, self._had()
        counts.check_invariants()
        assert counts.free == len(self.free) == BLOCKS - len(had)
        assert (counts.references_in_all, counts.resident) == (len(self.referenced), len(self.resident))
        for block in had:
            assert counts.references(block) == self.referenced.count(block)
            assert counts.is_pinned(block) == (block in self.pinned)
            assert counts.is_resident(block) == (block in self.resident)
            is_idle = block in self.resident and block not in self.pinned and block not in self.referenced
            assert counts.is_idle(block) == is_idle
        assert [*counts.idle_among(had)] == [block for block in had if counts.is_idle(block)]
        idle = [block for block in had if counts.is_idle(block)]
        assert [*counts.idle_among(idle)] == idle

    def _had(self) -> list[int]:
        return sorted({*self.referenced, *self.pinned, *self.resident})

    def _some(self, data: st.DataObject, blocks: list[int]) -> list[int]:
        return data.draw(st.lists(st.sampled_from(blocks), max_size=4)) if blocks else []

    def _free_left(self, blocks: list[int]) -> None:
        for block in blocks:
            if block not in self._had():
                self.free.append(number_of(block))
                self.gone.append(block)
                assert generation_of(block) >= 5

    def _refused(self, misuse: Callable[[], object]) -> None:
        with pytest.raises(ValueError, match="block"):
            misuse()


TestCounts = CountsMachine.TestCase
TestCounts.settings = settings(max_examples=examples(80), stateful_step_count=30, deadline=None)
