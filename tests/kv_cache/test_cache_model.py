"""A KVCache against transformers' dynamic layers, verb by verb: what each step attends to, and what is held after it.

Long steps go round the ring, and beyond what it holds at once; memory is checked after each verb.
"""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvcluster import KVCache, open_device
from kvcluster.testing.invariants import assert_nothing_lost
from tests.examples import examples
from tests.kv_cache.layers import GEOMETRY, LAYERS, WINDOW, dynamic, write

MOST_ROWS, MOST_TOKENS = 4, 1200
RING = 320  # tokens: 5 granules of 64, the first that hold a window and a chunk of 256


class CacheMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.device = open_device("host", memory="8MiB", granule="4KiB")
        self.ours = KVCache(self.device, GEOMETRY, max_tokens=MOST_TOKENS, batch=MOST_ROWS)
        self.theirs = dynamic()
        self.rows = 0
        self.recorded = 0  # tokens that the layer with the window holds, by its rules
        self.records = False

    @property
    def tokens(self) -> int:
        return int(self.theirs.get_seq_length())

    @rule(
        rows=st.integers(1, MOST_ROWS), tokens=st.sampled_from([1, 1, 2, 3, 5, 40, 300, 400]), seed=st.integers(0, 99)
    )
    def write(self, rows: int, tokens: int, seed: int) -> None:
        rows = self.rows or rows
        if self.tokens + tokens > MOST_TOKENS:
            with pytest.raises(ValueError, match="at most 1200 tokens"):
                write(self.ours, rows, tokens, seed)
            return
        sizes = [self.ours.get_mask_sizes(tokens, layer) for layer in range(LAYERS)]
        assert sizes == [self.theirs.get_mask_sizes(tokens, layer) for layer in range(LAYERS)]
        for mine, its in zip(write(self.ours, rows, tokens, seed), write(self.theirs, rows, tokens, seed), strict=True):
            assert all(map(torch.equal, mine, its))
        self.rows = rows
        self.recorded = min(self.recorded + tokens, RING if self.records else WINDOW - 1)

    @rule()
    def record(self) -> None:
        self.ours.activate_past_recording()
        self.theirs.activate_past_recording()
        self.records = True

    @precondition(lambda self: self.tokens)  # theirs fails on an empty layer with a window
    @rule(count=st.integers(0, 30))
    def crop(self, count: int) -> None:
        is_full = self.tokens >= WINDOW
        if is_full and not (self.records and max(0, self.tokens - count - WINDOW + 1) >= self.tokens - self.recorded):
            with pytest.raises(RuntimeError):
                self.ours.crop(-count)
            return
        count = min(count, self.tokens)
        self.ours.crop(-count)
        self.theirs.crop(-count)
        held = self.recorded - count
        self.recorded = min(held, WINDOW - 1) if is_full else held
        self._end_if_empty()

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def reorder(self, data: st.DataObject) -> None:
        order = data.draw(st.lists(st.integers(0, self.rows - 1), min_size=self.rows, max_size=self.rows))
        for cache in (self.ours, self.theirs):
            cache.reorder_cache(torch.tensor(order))

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def select(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.integers(0, self.rows - 1), min_size=1, max_size=MOST_ROWS))
        for cache in (self.ours, self.theirs):
            cache.batch_select_indices(torch.tensor(chosen))
        self.rows = len(chosen)

    @precondition(lambda self: self.rows)
    @rule(repeats=st.integers(1, 3))
    def repeat(self, repeats: int) -> None:
        if self.rows * repeats > MOST_ROWS:
            with pytest.raises(ValueError, match="at most 4 rows"):
                self.ours.batch_repeat_interleave(repeats)
            return
        for cache in (self.ours, self.theirs):
            cache.batch_repeat_interleave(repeats)
        self.rows *= repeats

    @rule()
    def reset(self) -> None:
        self.ours.reset()
        self.theirs.reset()
        self.rows = self.recorded = 0
        assert self.ours.committed_bytes == 0

    @invariant()
    def both_hold_the_same(self) -> None:
        assert [self.ours.get_seq_length(n) for n in range(LAYERS)] == [self.tokens] * LAYERS
        for mine, its in zip(self.ours.layers, self.theirs.layers, strict=True):
            if self.tokens:
                for ours, theirs in ((mine.keys, its.keys), (mine.values, its.values)):
                    held = min(ours.shape[2], theirs.shape[2])  # a ring holds less than all that was recorded
                    assert held >= min(self.tokens, WINDOW - 1)
                    assert torch.equal(ours[:, :, -held:], theirs[:, :, -held:])

    @invariant()
    def the_device_counts_what_it_holds(self) -> None:
        assert self.device.audit().committed_bytes == self.ours.committed_bytes

    def teardown(self) -> None:
        self.ours.close()
        assert_nothing_lost(self.device)
        self.device.close()

    def _end_if_empty(self) -> None:
        """Theirs forgets how many rows there were; ours is told anew with the next step."""
        if not self.tokens:
            self.reset()


TestCacheModel = CacheMachine.TestCase
TestCacheModel.settings = settings(max_examples=examples(40), stateful_step_count=25, deadline=None)
