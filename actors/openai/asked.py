"""What one HTTP request asks for, checked in form: plain values, the same for both routes."""

from __future__ import annotations

from dataclasses import dataclass

from actors.openai.seams import Message
from kvcluster.services.completion import CompletionRequest

ABOUT_A_MESSAGE = 32  # characters


@dataclass(frozen=True, slots=True)
class Conversation:
    """A chat that the model's template makes a prompt of."""

    messages: tuple[Message, ...]

    @property
    def text(self) -> str:
        """What all messages say, without what a template puts around it."""
        return "\n".join(message.content for message in self.messages)

    @property
    def characters(self) -> int:
        """About as many as its prompt has: a template puts words of its own around each message."""
        given = (part for message in self.messages for part in (message.content, message.name, message.tool_call_id))
        return sum(len(part) for part in given if part) + len(self.messages) * ABOUT_A_MESSAGE


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
