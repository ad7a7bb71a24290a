"""Sequences in host pages whose tables are shuffled, as the engine computes them: for tests that compare texts."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from kvcluster.engine.batch import Slice
from kvcluster.engine.model import Model
from kvcluster.paged.block_pool import BlockPool
from kvcluster.paged.shape import PageShape
from kvcluster.tensors.paged_views import PagedViews

BLOCK_SIZE = 8


@contextmanager
def pages_for(model: Model, blocks: int = 128) -> Iterator[BlockPool]:
    """A pool of the model's shape, full of what would change a text if it were read."""
    shape = PageShape.of(model.geometry, block_size=BLOCK_SIZE)
    pool = BlockPool(blocks, BLOCK_SIZE, shape.num_layers, shape.num_kv_heads, shape.head_dim, dtype=model.dtype)
    with pool:
        pool.tensor.fill_(1e4)
        yield pool


class PagedRunning:
    """One sequence; `run` is how many consecutive blocks its table has at a time."""

    def __init__(self, model: Model, pool: BlockPool, prompt: Sequence[int], numbers: Sequence[int]) -> None:
        self._model = model
        self.views = PagedViews(len(numbers) * BLOCK_SIZE, model.geometry.groups, tuple(numbers), pool.tensor)
        self.tokens = list(prompt)
        self.held = 0
        self._prompt = len(prompt)

    @property
    def new_ids(self) -> list[int]:
        return self.tokens[self._prompt :]

    def piece(self, most: int) -> Slice:
        count = min(most, len(self.tokens) - self.held)
        ids = self.tokens[self.held : self.held + count]
        return Slice(self.views, self.held, ids, sample=self.held + count == len(self.tokens))


def step(model: Model, sequences: Sequence[PagedRunning], *, chunk_tokens: int = 4096) -> None:
    """One step of all of them, greedy."""
    pieces = [sequence.piece(chunk_tokens) for sequence in sequences]
    chosen = iter(model.forward(pieces).argmax(-1).tolist())
    for sequence, piece in zip(sequences, pieces, strict=True):
        sequence.held = piece.stop
        if piece.sample:
            sequence.tokens.append(next(chosen))


def shuffled(pool: BlockPool, tables: int, *, run: int) -> list[list[int]]:
    """All blocks of the pool dealt out to so many tables, in pieces of `run` consecutive ones."""
    blocks = pool.counts.num_blocks
    pieces = [list(range(start, start + run)) for start in range(0, blocks - run + 1, run)]
    random.Random(3).shuffle(pieces)
    each = len(pieces) // tables
    return [[n for piece in pieces[i * each : (i + 1) * each] for n in piece] for i in range(tables)]


def greedy(model: Model, sequences: Sequence[PagedRunning], *, new_tokens: int, chunk_tokens: int = 4096) -> None:
    """Until each has so many new tokens."""
    while under_way := [s for s in sequences if len(s.new_ids) < new_tokens]:
        step(model, under_way, chunk_tokens=chunk_tokens)


def same_rows(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(torch.allclose(one, other, atol=1e-5, rtol=1e-5))
