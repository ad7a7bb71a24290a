"""Sequences in memory of a LocalDevice, and a loop that runs them together without the services above the engine.

Each commit grows a sequence by as few granules as its next tokens need, so that its memory is put together from many
mappings. What is committed and not yet written holds NaN, which no computation leaves unnoticed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvcluster import Layout, LocalDevice
from kvcluster.engine.batch import Slice
from kvcluster.engine.model import Model
from kvcluster.services.sequence import SequenceSpec
from kvcluster.tensors.views import GroupView, KvViews

GRANULE_BYTES = 4096
CAPACITY_BYTES = 4096 * GRANULE_BYTES


@dataclass(frozen=True, slots=True)
class Arrival:
    """A prompt, and the step at which it joins the batch."""

    prompt: Sequence[int]
    step: int = 0


class Sequenced:
    """Views of one sequence that grow by commits; its memory is closed by the `device` fixture."""

    def __init__(self, device: LocalDevice, spec: SequenceSpec, dtype: torch.dtype) -> None:
        self.memory = device.port.memory(spec)
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
                _spoil(group, before)
        return self._views


def _spoil(group: GroupView, before: int) -> None:
    """NaN in the rows that are new: all behind token `before`, and in a ring those of its first lap."""
    held = group.rows.ring // group.rows.stride or group.tokens
    if before < min(held, group.tokens):
        group.narrowed(before, min(held, group.tokens)).block[:] = float("nan")


@dataclass(frozen=True, slots=True)
class Loop:
    """How sequences run together; rings are made for chunks of `chunk_tokens`."""

    layout: Layout = Layout.TOKEN_MAJOR
    new_tokens: int = 64
    chunk_tokens: int = 512

    def run(self, model: Model, device: LocalDevice, arrivals: Sequence[Arrival]) -> list[Running]:
        """Each prompt with its greedy continuation, computed in shared steps."""
        sequences = [Running(model, device, self, arrival.prompt) for arrival in arrivals]
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


class Running:
    """One request's tokens and memory."""

    def __init__(self, model: Model, device: LocalDevice, loop: Loop, prompt: Sequence[int]) -> None:
        most = len(prompt) + loop.new_tokens
        spec = SequenceSpec(model.geometry, loop.layout, most, chunk_tokens=loop.chunk_tokens)
        self.kv = Sequenced(device, spec, model.dtype)
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


def take_step(model: Model, running: Sequence[Running], chunk_tokens: int) -> None:
    slices = [sequence.next_slice(chunk_tokens) for sequence in running]
    chosen = iter(model.forward(slices).argmax(-1).tolist())
    for sequence, piece in zip(running, slices, strict=True):
        sequence.computed = piece.stop
        if piece.sample:
            sequence.token_ids.append(next(chosen))
