"""A model's tokenizer as the gateway uses it: texts and chats to token ids.

A chat goes through the tokenizer's own template. Where it has none, through a plain one of ours: a line a message,
"role: content" ("role (name): content" for one with a name), and "assistant:" as the last, which the model continues.
transformers is loaded when prompts are opened, not before: whoever only imports this does without.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors.openai.seams import Message, Prompts, WrongMessages

if TYPE_CHECKING:
    from kvcluster.engine.tokenizer import Tokenizer


class ModelPrompts:
    """`Prompts` of one model; its tokenizer may be used by several threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text))

    def chat(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """See `Prompts`. What a template raises by itself, or cannot do with such messages, is the messages' fault."""
        if not self._tokenizer.inner.chat_template:
            return self.encode(plain_chat(messages))
        from jinja2 import TemplateError

        try:
            return self._templated([_as_template_takes(message) for message in messages])
        except (TemplateError, TypeError, ValueError) as error:
            raise WrongMessages(str(error)) from None

    def _templated(self, messages: list[dict[str, str]]) -> tuple[int, ...]:
        ids: list[int] = self._tokenizer.inner.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=False
        )
        return tuple(ids)


def plain_chat(messages: Sequence[Message]) -> str:
    """The text of a chat for a model that has no template."""
    return "".join(f"{_speaker(message)}: {message.content}\n" for message in messages) + "assistant:"


def _speaker(message: Message) -> str:
    return f"{message.role} ({message.name})" if message.name else message.role


def _as_template_takes(message: Message) -> dict[str, str]:
    fields: dict[str, Any] = {
        "role": message.role,
        "content": message.content,
        "name": message.name,
        "tool_call_id": message.tool_call_id,
    }
    return {name: value for name, value in fields.items() if value is not None}


def open_prompts(folder: str | Path) -> Prompts:
    """The prompts of the model in `folder`.

    Raises:
        ModelNotFound: there is no tokenizer, or it cannot be read.
    """
    from kvcluster.engine.tokenizer import open_tokenizer

    return ModelPrompts(open_tokenizer(folder))
