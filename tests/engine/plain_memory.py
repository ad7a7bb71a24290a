"""A stand-in for the services above the engine: sequences in a plain buffer, and a loop that runs them together.

It grows each sequence's views a few tokens at a time, as commits would, and cuts prompts into chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvcluster.engine.batch import Slice
from kvcluster.engine.model import Model
from kvcluster.geometry.layout import Layout
from kvcluster.geometry.residency import RangeMap, Shape
from kvcluster.tensors.views import KvViews, kv_views
from kvcluster.units import ceil_div

GRANULE_BYTES = 4096


class Buffer:
    """So many bytes that begin on a granule, filled with what no computation leaves unnoticed: NaN."""

    def __init__(self, size_bytes: int) -> None:
        self._memory = torch.full((size_bytes + GRANULE_BYTES,), 0xFF, dtype=torch.uint8)
        self.address = ceil_div(self._memory.data_ptr(), GRANULE_BYTES) * GRANULE_BYTES


@dataclass(frozen=True, slots=True)
class Arrival:
    """A prompt, and the step at which it joins the batch."""

    prompt: Sequence[int]
    step: int = 0


class Running:
    """One request's tokens and memory."""

    def __init__(self, model: Model, layout: Layout, prompt: Sequence[int], new_tokens: int) -> None:
        self._model, self._layout = model, layout
        shape = Shape.of(model.geometry, layout, GRANULE_BYTES)
        self._range_map = RangeMap(shape, len(prompt) + new_tokens)
        self._buffer = Buffer(self._range_map.size_bytes)
        self._views = self._grown(0)
        self._prompt_tokens = len(prompt)
        self.token_ids = list(prompt)
        self.computed = 0

    @property
    def new_ids(self) -> list[int]:
        return self.token_ids[self._prompt_tokens :]

    def next_slice(self, chunk_tokens: int) -> Slice:
        stop = min(len(self.token_ids), self.computed + chunk_tokens)
        return Slice(self.views(stop), self.computed, self.token_ids[self.computed : stop], stop == len(self.token_ids))

    def views(self, tokens: int) -> KvViews:
        if tokens > self._views.tokens:
            self._views = self._grown(min(tokens + 5, self._range_map.max_tokens))
        return self._views

    def _grown(self, tokens: int) -> KvViews:
        model = self._model
        return kv_views(
            self._buffer.address, self._range_map, model.geometry, self._layout, tokens=tokens, dtype=model.dtype
        )


def run_together(
    model: Model, arrivals: Sequence[Arrival], *, layout: Layout, new_tokens: int = 64, chunk_tokens: int = 512
) -> list[list[int]]:
    """The greedy continuation of each prompt, computed in shared steps."""
    sequences = [Running(model, layout, arrival.prompt, new_tokens) for arrival in arrivals]
    step = 0
    while any(len(sequence.new_ids) < new_tokens for sequence in sequences):
        running = [
            sequence
            for sequence, arrival in zip(sequences, arrivals, strict=True)
            if arrival.step <= step and len(sequence.new_ids) < new_tokens
        ]
        if running:
            take_step(model, running, chunk_tokens)
        step += 1
    return [sequence.new_ids for sequence in sequences]


def take_step(model: Model, running: Sequence[Running], chunk_tokens: int) -> None:
    slices = [sequence.next_slice(chunk_tokens) for sequence in running]
    chosen = iter(model.forward(slices).argmax(-1).tolist())
    for sequence, piece in zip(running, slices, strict=True):
        sequence.computed = piece.stop
        if piece.sample:
            sequence.token_ids.append(next(chosen))
