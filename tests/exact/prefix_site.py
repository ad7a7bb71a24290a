"""Where texts are computed and shared: a model, a port, and verbs whose arguments and answers could be JSON.

The real path: memories of a `DevicePort`, views that know what is sealed of them, `Model.forward` over all texts of a
call together. Memory that a text gets for itself is filled with NaN first, so that a row that nobody wrote shows.
A refusal to share is an answer here: its kind.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from kvcluster.engine.batch import Slice
from kvcluster.engine.model import Model
from kvcluster.errors import NotShareable
from kvcluster.geometry.layout import Layout
from kvcluster.geometry.residency import Keeps
from kvcluster.services.asks import Ask, End, Grow, Join
from kvcluster.services.port import DevicePort
from kvcluster.services.prefix import Prefix
from kvcluster.services.sequence import SequenceMemory, SequenceSpec
from tests.services.prefixes import sealed_pieces
from tests.services.world import digest

Known = Sequence[str | int]  # the fields of a Prefix
NAN = 0xFF  # in every byte of a float32


@dataclass(frozen=True, slots=True)
class Setting:
    """How memories lie; `chunk_tokens` are computed in a step, and the rings are made for as many."""

    layout: str
    granule_bytes: int
    chunk_tokens: int
    max_tokens: int


class Text:
    """A prompt, what was said after it, and its memory, in which `held` tokens have their K and V."""

    def __init__(self, memory: SequenceMemory, prompt: Sequence[int]) -> None:
        self.memory = memory
        self.tokens = list(prompt)
        self.held = 0
        self._prompt_tokens = len(prompt)

    @property
    def said(self) -> list[int]:
        return self.tokens[self._prompt_tokens :]


class Site:
    """One session's texts, by number."""

    def __init__(self, model: Model, port: DevicePort, setting: Setting) -> None:
        self._model, self._port, self._setting = model, port, setting
        self._texts: dict[int, Text] = {}
        self._opened = 0

    def open(self, prompt: Sequence[int]) -> int:
        setting, self._opened = self._setting, self._opened + 1
        spec = SequenceSpec(
            self._model.geometry, Layout(setting.layout), setting.max_tokens, chunk_tokens=setting.chunk_tokens
        )
        self._texts[self._opened] = Text(self._port.memory(spec), prompt)
        return self._opened

    def join(self, number: int, known: Known, match: int) -> int | str:
        """How many tokens came with the prefix. Every other text gets memory of its own in the same frame."""
        text, prefix = self._texts[number], Prefix(*known)  # type: ignore[arg-type]
        try:
            self._ask([Join(text.memory, prefix, match, grow_to=match if number % 2 else None)])
        except NotShareable as refusal:
            return str(refusal.kind)
        spoil(text.memory, text.memory.sealed)
        text.held = text.memory.joined_tokens
        return text.held

    def say(self, numbers: Sequence[int], count: int) -> list[list[int]]:
        """Each text goes on to `count` tokens after its prompt; what it has said by then."""
        texts = [self._texts[number] for number in numbers]
        while behind := [text for text in texts if len(text.said) < count]:
            self._grow(behind)
            slices = [self._slice(text) for text in behind]
            chosen = self._model.forward(slices).argmax(-1).tolist()
            for text, piece in zip(behind, slices, strict=True):
                text.held = piece.stop
                if piece.sample:
                    text.tokens.append(chosen.pop(0))
        return [text.said for text in texts]

    def publish(self, numbers: Sequence[int]) -> list[Known | str]:
        """A prefix of all that each text holds."""
        return [self._published(self._texts[number]) for number in numbers]

    def release(self, number: int) -> None:
        text = self._texts[number]
        text.memory.release()
        text.held = 0

    def close(self, numbers: Sequence[int]) -> None:
        self._ask([End(self._texts.pop(number).memory) for number in numbers])

    def digests(self, numbers: Sequence[int]) -> list[str]:
        """Of all that each has mapped for reading only."""
        memories = [self._texts[number].memory for number in numbers]
        return [digest(memory, sealed_pieces(memory)) for memory in memories]

    def far(self, number: int, other: int) -> float:
        """How far the K and V of two texts are apart: of all tokens that the next one needs."""
        one, two = self._texts[number], self._texts[other]
        stop, apart = min(one.held, two.held), []
        views = (text.memory.views(self._model.dtype) for text in (one, two))
        for mine, theirs in zip(*(view.groups for view in views), strict=True):
            first = max(0, stop + 1 - mine.window_tokens) if mine.window_tokens else 0
            apart.append((mine.narrowed(first, stop).block - theirs.narrowed(first, stop).block).abs().max().item())
        return max(apart) if all(value == value for value in apart) else float("inf")

    def spoil_key(self, number: int, token: int) -> None:
        """Make the K of one token in the first layer that sees every token wrong."""
        views = self._texts[number].memory.views(self._model.dtype)
        [group] = [group for group in views.groups if group.window_tokens is None]
        group.narrowed(token, token + 1).block[0, 0] *= -8

    def _ask(self, asks: Sequence[Ask]) -> None:
        """In one frame."""
        for outcome in self._port.submit(asks).settle() if asks else ():
            if outcome.error:
                raise outcome.error

    def _grow(self, texts: Sequence[Text]) -> None:
        """Memory for the next step of each."""
        behind = [text for text in texts if text.memory.tokens < self._stop(text)]
        before = [text.memory.windows for text in behind]
        self._ask([Grow(text.memory, self._stop(text)) for text in behind])
        for text, windows in zip(behind, before, strict=True):
            spoil(text.memory, windows)

    def _stop(self, text: Text) -> int:
        return min(len(text.tokens), text.held + self._setting.chunk_tokens)

    def _slice(self, text: Text) -> Slice:
        stop, views = self._stop(text), text.memory.views(self._model.dtype)
        return Slice(views, text.held, text.tokens[text.held : stop], stop == len(text.tokens))

    def _published(self, text: Text) -> Known | str:
        try:
            return astuple(text.memory.publish(text.held))
        except NotShareable as refusal:
            return str(refusal.kind)


def spoil(memory: SequenceMemory, before: tuple[int, ...]) -> None:
    """NaN in the windows that are there since, where every token is kept: a ring may have its window already."""
    range_map = memory.range.range_map
    granule_bytes = range_map.shape.granule_bytes
    for number, group in enumerate(range_map.shape.groups):
        if group.keeps is Keeps.EVERY:
            size_bytes = (memory.windows[number] - before[number]) * granule_bytes
            for fragment in range(group.fragments):
                offset = range_map.fragment_offset_bytes(number, fragment) + before[number] * granule_bytes
                ctypes.memset(memory.address + offset, NAN, size_bytes)
