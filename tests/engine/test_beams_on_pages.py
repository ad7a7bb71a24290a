"""Beams that share blocks: forked, permuted and written after copies, they find what transformers' search finds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from kvcluster.engine.batch import Slice
from kvcluster.engine.beams import BeamSearch, BeamSettings, Hypothesis
from kvcluster.engine.model import Model
from kvcluster.paged.block_pool import BlockPool
from kvcluster.paged.block_table import BlockTable, BlockTables
from kvcluster.paged.counts import number_of
from kvcluster.tensors.paged_views import PagedViews
from tests.engine.on_pages import BLOCK_SIZE, pages_for
from tests.engine.test_beams import wanted

PROMPT = list(range(20, 41))


class Beams:
    """The tables of one search over a pool."""

    def __init__(self, model: Model, pool: BlockPool) -> None:
        self._model, self._pool = model, pool
        self._tables = BlockTables(pool.counts, BLOCK_SIZE)
        self._of_beam = [BlockTable()]
        self.copies = 0

    def search(self, settings: BeamSettings) -> list[Hypothesis]:
        search = BeamSearch(settings)
        chosen = search.advance(self._following([PROMPT], 0))
        held = len(PROMPT)
        self._of_beam += self._tables.fork(self._of_beam[0], held, settings.width - 1)
        while not search.is_over:
            self._tables.permute(self._of_beam, chosen.parents, held)
            chosen = search.advance(self._following([[token] for token in chosen.token_ids], held))
            held += 1
        for table in self._of_beam:
            self._tables.drop(table)
        return search.best()

    def _following(self, tokens: Sequence[list[int]], start: int) -> torch.Tensor:
        pieces = []
        for table, new in zip(self._of_beam, tokens, strict=True):
            growth = self._tables.grow(table, start + len(new))
            for copy in growth.copies:
                self._pool.store.copy_tokens(number_of(copy.source), number_of(copy.target), copy.tokens)
            self.copies += len(growth.copies)
            self._tables.settle(growth)
            numbers = tuple(map(number_of, table.blocks))
            views = PagedViews(start + len(new), self._model.geometry.groups, numbers, self._pool.tensor)
            pieces.append(Slice(views, start, new, sample=True))
        return self._model.forward(pieces).log_softmax(-1)


@pytest.mark.parametrize("width", [2, 3, 5])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
def test_beams_in_shared_blocks_are_those_of_generate(
    family: str, width: int, opened: Callable[[str], Model], reference: Callable[[str], Any]
) -> None:
    unended = wanted(reference(family), PROMPT, BeamSettings(width, 20))
    eos_ids = frozenset(unended[0][0][9:11])
    for settings in (BeamSettings(width, 20), BeamSettings(width, 20, eos_ids, length_penalty=0.0)):
        with pages_for(opened(family)) as pool:
            beams = Beams(opened(family), pool)
            best = beams.search(settings)
            assert pool.free_blocks == pool.counts.num_blocks
            assert beams.copies > 0  # blocks that others had were written into
        want = wanted(reference(family), PROMPT, settings)
        assert [one.token_ids for one in best] == [
            tuple(t[: len(one.token_ids)]) for (t, _), one in zip(want, best, strict=True)
        ]
        assert [one.score for one in best] == pytest.approx([score for _, score in want], abs=1e-3)
