"""What one HTTP request asks for, checked in form: plain values, the same for both routes."""

from __future__ import annotations

from dataclasses import dataclass

from actors.openai.seams import Message
from kvcluster.services.completion import CompletionRequest


@dataclass(frozen=True, slots=True)
class Conversation:
    """A chat that the model's template makes a prompt of."""

    messages: tuple[Message, ...]

    @property
    def characters(self) -> int:
        return sum(len(message.content) for message in self.messages)


Prompt = str | tuple[int, ...] | Conversation


@dataclass(frozen=True, slots=True)
class Stream:
    """How an answer is streamed; with `ends_with_usage` its last event counts tokens, with `counts` each one does."""

    ends_with_usage: bool = False
    counts: bool = False


@dataclass(frozen=True, slots=True)
class Asked:
    """`request` is what all `prompts` share: each gets its own, with its tokens, once the model is known.

    `max_tokens` None: all that the model's context leaves. `stream` None: the answer is one document.
    """

    model: str
    prompts: tuple[Prompt, ...]
    max_tokens: int | None
    stream: Stream | None
    request: CompletionRequest
