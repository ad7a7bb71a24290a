"""The two routes' forms of one answer: what a choice looks like, whole and in parts. Plain JSON values.

Shapes: OpenAI's API reference; their objects are "text_completion" in both cases, and "chat.completion" and
"chat.completion.chunk".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from actors.openai.asked import Asked
from actors.openai.chat_fields import chat_asked
from actors.openai.completion_fields import completion_asked
from actors.openai.likelihoods import of_chat, of_completion
from actors.openai.limits import Limits
from kvcluster.services.completion import Choice, Delta

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Form:
    """One route's. `opening` is the first part of a streamed choice, where there is one before it says anything.

    `part` is given how many characters of tokens its choice's earlier parts had.
    """

    path: str
    id_prefix: str
    whole_object: str
    part_object: str
    asked: Callable[[Mapping[str, Any], Limits], Asked]
    opening: Callable[[], Fields] | None
    part: Callable[[Delta, int], Fields]
    whole: Callable[[Choice], Fields]


def _completion_part(delta: Delta, offset: int) -> Fields:
    logprobs = of_completion(delta.logprobs, offset=offset) if delta.logprobs else None
    return {"text": delta.text, "logprobs": logprobs, "finish_reason": delta.finish_reason}


def _completion_whole(choice: Choice) -> Fields:
    logprobs = of_completion(choice.logprobs) if choice.logprobs else None
    return {"text": choice.text, "logprobs": logprobs, "finish_reason": choice.finish_reason}


def _chat_opening() -> Fields:
    return {"delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}


def _chat_part(delta: Delta, offset: int) -> Fields:
    logprobs = of_chat(delta.logprobs) if delta.logprobs else None
    said = {"content": delta.text} if delta.text or not delta.finish_reason else {}
    return {"delta": said, "logprobs": logprobs, "finish_reason": delta.finish_reason}


def _chat_whole(choice: Choice) -> Fields:
    message = {"role": "assistant", "content": choice.text, "refusal": None}
    logprobs = of_chat(choice.logprobs) if choice.logprobs else None
    return {"message": message, "logprobs": logprobs, "finish_reason": choice.finish_reason}


COMPLETIONS = Form(
    "/v1/completions",
    "cmpl-",
    "text_completion",
    "text_completion",
    completion_asked,
    None,
    _completion_part,
    _completion_whole,
)
CHAT = Form(
    "/v1/chat/completions",
    "chatcmpl-",
    "chat.completion",
    "chat.completion.chunk",
    chat_asked,
    _chat_opening,
    _chat_part,
    _chat_whole,
)
