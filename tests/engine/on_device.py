"""Sequences in memory of a LocalDevice, and a loop that runs them together without the services above the engine.

Each commit grows a sequence by as few granules as its next tokens need, so that its memory is put together from many
mappings. What is committed and not yet written holds NaN, which no computation leaves unnoticed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvcluster import KvGeometry, Layout, LocalDevice
from kvcluster.engine.batch import Slice
from kvcluster.engine.model import Model
from kvcluster.tensors.views import KvViews

GRANULE_BYTES = 4096
CAPACITY_BYTES = 4096 * GRANULE_BYTES


@dataclass(frozen=True, slots=True)
class Arrival:
    """A prompt, and the step at which it joins the batch."""

    prompt: Sequence[int]
    step: int = 0


class Sequenced:
    """Views of one sequence that grow by commits; its memory is closed by the `device` fixture."""

    def __init__(
        self, device: LocalDevice, geometry: KvGeometry, layout: Layout, *, max_tokens: int, dtype: torch.dtype
    ) -> None:
        self.memory = device.open(geometry, max_tokens=max_tokens, layout=layout)
        self.commits = 0
        self._dtype = dtype
        self._views = self.memory.views(dtype)

    def views(self, tokens: int) -> KvViews:
        """Of at least `tokens` tokens."""
        before = self.memory.tokens
        if tokens > before:
            self.memory.commit(tokens, self.memory.grant(tokens))
            self.commits += 1
            self._views = self.memory.views(self._dtype)
            for group in self._views.groups:
                group.block[:, :, :, before:] = float("nan")
        return self._views


class Running:
    """One request's tokens and memory."""

    def __init__(
        self, model: Model, device: LocalDevice, layout: Layout, prompt: Sequence[int], *, new_tokens: int
    ) -> None:
        self.kv = Sequenced(device, model.geometry, layout, max_tokens=len(prompt) + new_tokens, dtype=model.dtype)
        self._prompt_tokens = len(prompt)
        self.token_ids = list(prompt)
        self.computed = 0

    @property
    def new_ids(self) -> list[int]:
        return self.token_ids[self._prompt_tokens :]

    def next_slice(self, chunk_tokens: int) -> Slice:
        stop = min(len(self.token_ids), self.computed + chunk_tokens)
        ids = self.token_ids[self.computed : stop]
        return Slice(self.kv.views(stop), self.computed, ids, stop == len(self.token_ids))


@dataclass(frozen=True, slots=True)
class Loop:
    """How sequences run together."""

    layout: Layout = Layout.TOKEN_MAJOR
    new_tokens: int = 64
    chunk_tokens: int = 512

    def run(self, model: Model, device: LocalDevice, arrivals: Sequence[Arrival]) -> list[Running]:
        """Each prompt with its greedy continuation, computed in shared steps."""
        sequences = [
            Running(model, device, self.layout, arrival.prompt, new_tokens=self.new_tokens) for arrival in arrivals
        ]
        step = 0
        while any(len(sequence.new_ids) < self.new_tokens for sequence in sequences):
            running = [
                sequence
                for sequence, arrival in zip(sequences, arrivals, strict=True)
                if arrival.step <= step and len(sequence.new_ids) < self.new_tokens
            ]
            if running:
                take_step(model, running, self.chunk_tokens)
            step += 1
        return sequences


def take_step(model: Model, running: Sequence[Running], chunk_tokens: int) -> None:
    slices = [sequence.next_slice(chunk_tokens) for sequence in running]
    chosen = iter(model.forward(slices).argmax(-1).tolist())
    for sequence, piece in zip(running, slices, strict=True):
        sequence.computed = piece.stop
        if piece.sample:
            sequence.token_ids.append(next(chosen))
