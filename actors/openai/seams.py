"""What the HTTP side needs of whoever computes: which models there are, their tokens, and what is said of a request.

Nothing here knows Ray. In serving it is implemented over Serve handles; in tests over a list of what is said, or over
a request service in the same process.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kvcluster.services.completion import CompletionRequest, Said


class Unavailable(Exception):
    """Nobody computes this now: a replica or its device is lost, starting again, or ending. Asked later it may go.

    `reason` is one word for counters and programs, the text a sentence for people.
    """

    def __init__(self, reason: str, sentence: str, *, retry_after_s: float) -> None:
        super().__init__(sentence)
        self.reason = reason
        self.retry_after_s = retry_after_s


class WrongMessages(ValueError):
    """The model's chat template takes no such messages; the text says why."""


@dataclass(frozen=True, slots=True)
class Room:
    """Of a model: each of so many replicas computes or keeps waiting so many texts at one time, and no more."""

    replicas: int
    texts: int

    def most_prompts(self, n: int) -> int:
        """How many prompts of `n` texts each fit; the texts of one prompt are computed by one replica."""
        return self.replicas * (self.texts // n)


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A model under the name that clients give. `created` is in seconds since 1970.

    `max_model_len` are the most tokens of prompt and answer together: the smaller of the model's context and what its
    device can ever hold, because a chat that names no `max_tokens` asks for all of them. `context_tokens`: the model's
    context, where it is the larger; None where it is the limit. `room` None: nobody knows how many texts fit.
    """

    id: str
    created: int
    max_model_len: int
    owned_by: str = "kvcluster"
    context_tokens: int | None = None
    room: Room | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a chat; `role` is system, user, assistant or tool."""

    role: str
    content: str
    name: str | None = None
    tool_call_id: str | None = None


class Prompts(Protocol):
    """Texts and chats as a model's token ids. Called from several threads at once."""

    def encode(self, text: str) -> tuple[int, ...]:
        """The ids of `text`, with those that the model wants before it."""
        ...

    def chat(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The ids of the messages, and of what begins the assistant's answer.

        Raises:
            WrongMessages: the model's template takes none like these. Nothing changed.
        """
        ...


class Models(Protocol):
    """The models that are served."""

    def cards(self) -> Sequence[ModelCard]:
        """Of those of which anything is known yet."""
        ...

    def check_known(self, name: str) -> None:
        """Nothing, where `name` is on a card, or is no model's.

        Raises:
            Unavailable: a model of that name is to be served, and nothing is known of it yet.
        """
        ...

    def prompts(self, model: str) -> Prompts:
        """Of a model on one of the cards."""
        ...

    def generate(self, model: str, request: CompletionRequest) -> AsyncGenerator[Said, None]:
        """What is said of `request`, as it `tells`: `Begun`, `Delta`s if it is wanted in parts, and a `Completion`;
        or a `Refused` in the end.

        Closing it (`aclose`), or cancelling whoever waits for it, cancels the request: it is computed no further, and
        its memory is given back.

        Raises:
            Unavailable: whoever computed it is lost. Nothing more will be said, and nothing is held for it.
        """
        ...

    async def kv(self) -> Mapping[str, Any]:
        """The state of the memory, as JSON takes it.

        Raises:
            Unavailable: nobody could be asked.
        """
        ...

    async def ready(self) -> None:
        """Returns where requests can be computed.

        Raises:
            Unavailable: they cannot, now.
        """
        ...
