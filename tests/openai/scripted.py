"""Models that say what they are told to: the seam below the HTTP side, without a model, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from actors.openai.prompts import plain_chat
from actors.openai.seams import Message, ModelCard, Prompts, Unavailable, WrongMessages
from kvcluster.services.completion import Begun, Choice, Completion, CompletionRequest, Delta, Said

CARD = ModelCard("tiny", created=1_700_000_000, max_model_len=512)

Step = Said | Exception | asyncio.Event  # an event is waited for


class LetterPrompts:
    """A token a letter. Messages of tools are what its template does not take."""

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(ord(letter) % 500 for letter in text)

    def chat(self, messages: Sequence[Message]) -> tuple[int, ...]:
        if any(message.role == "tool" for message in messages):
            raise WrongMessages("no tools here")
        return self.encode(plain_chat(messages))


@dataclass(slots=True)
class Scripted:
    """To the i-th prompt that comes it says `scripts[i]`, to those after the last what it says to that one.

    `asked` are the requests that came; `open_count` of them are being answered, `heard` steps were taken of all.
    """

    scripts: Sequence[Sequence[Step]]
    lost: Unavailable | None = None
    card: ModelCard = CARD
    tokenizer: Prompts = field(default_factory=LetterPrompts)
    asked: list[CompletionRequest] = field(default_factory=list)
    open_count: int = 0
    heard: int = 0
    came: asyncio.Event = field(default_factory=asyncio.Event)
    starting: frozenset[str] = frozenset()

    def cards(self) -> Sequence[ModelCard]:
        return (self.card,)

    def check_known(self, name: str) -> None:
        if name in self.starting:
            raise Unavailable("model_starting", "it is being loaded", retry_after_s=5.0)

    def prompts(self, model: str) -> Prompts:
        return self.tokenizer

    async def generate(self, model: str, request: CompletionRequest) -> AsyncGenerator[Said, None]:
        script = self.scripts[min(len(self.asked), len(self.scripts) - 1)]
        self.asked.append(request)
        self.open_count += 1
        self.came.set()
        try:
            for step in script:
                if isinstance(step, asyncio.Event):
                    await step.wait()
                elif isinstance(step, Exception):
                    raise step
                else:
                    self.heard += 1
                    yield step
        finally:
            for _ in range(9):  # an end takes its time
                await asyncio.sleep(0)
            self.open_count -= 1

    async def kv(self) -> Mapping[str, Any]:
        self._check_not_lost()
        return {"devices": []}

    async def ready(self) -> None:
        self._check_not_lost()

    def _check_not_lost(self) -> None:
        if self.lost:
            raise self.lost


def spoken(*texts: str, prompt_tokens: int = 3, cached_tokens: int = 0) -> list[Step]:
    """An answer of one choice, a part each text, each of one token."""
    parts = [Delta(0, text, 1) for text in texts[:-1]]
    last = Delta(0, texts[-1], 1, finish_reason="stop")
    whole = Completion("".join(texts), "stop", prompt_tokens, len(texts), cached_tokens=cached_tokens)
    return [Begun(prompt_tokens, cached_tokens), *parts, last, whole]


def spoken_twice(first: str, second: str) -> list[Step]:
    """An answer of two choices, a part each."""
    whole = Completion(first, "stop", 3, 2, more=(Choice(second, "length"),))
    return [Begun(3, 0), Delta(1, second, 1, finish_reason="length"), Delta(0, first, 1, finish_reason="stop"), whole]
