"""A body for /v1/chat/completions: messages in order, whose contents are texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from actors.openai.asked import Asked, Conversation
from actors.openai.checks import Check, flag, must_be, text, whole
from actors.openai.fields import LONGEST_NAME, check_choices, given, max_tokens_of, of_request
from actors.openai.limits import Limits
from actors.openai.problems import wrong
from actors.openai.seams import Message
from actors.openai.streaming_fields import stream_of, stream_options
from kvcluster.services.completion import MOST_LOGPROBS, CompletionRequest, Telling
from kvcluster.services.given import is_text, shown

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
"""What a template knows them by: developer is OpenAI's newer word for system, and templates know the older."""

_TEXTS: Mapping[str, Check] = {"name": text(LONGEST_NAME), "tool_call_id": text(LONGEST_NAME)}
_OF_ANSWERS = ("refusal", "annotations", "audio", "function_call", "tool_calls")
"""What clients send back of an earlier answer: taken where it is empty, as it is in ours."""

LONGEST_CHAT = 4096


def chat_asked(document: Mapping[str, Any], limits: Limits) -> Asked:
    """What `document` asks for.

    Raises:
        Problem: the first thing that is wrong with it.
    """
    values = given(document, _OWN)
    if "messages" not in values:
        raise wrong("messages", "messages is missing", code="missing_field")
    check_choices(values, limits, prompts=1)
    stream = stream_of(values)
    request = CompletionRequest(
        (), logprobs=_logprobs(values), tells=Telling.PARTS if stream else Telling.BEGUN, **of_request(values)
    )
    prompts = (Conversation(values["messages"]),)
    return Asked(values["model"], prompts, max_tokens_of(values), stream, request)


def _logprobs(values: Mapping[str, Any]) -> int | None:
    likeliest: int = values.get("top_logprobs", 0)
    if values.get("logprobs", False):
        return likeliest
    if likeliest:
        raise wrong("top_logprobs", "top_logprobs must be given only with logprobs true")
    return None


def _messages(name: str, value: Any) -> tuple[Message, ...]:
    if not isinstance(value, list) or not 0 < len(value) <= LONGEST_CHAT:
        raise must_be(name, value, f"a list of 1 to {LONGEST_CHAT} messages")
    return tuple(_message(f"{name}.{place}", message) for place, message in enumerate(value))


def _message(name: str, value: Any) -> Message:
    if not isinstance(value, dict):
        raise must_be(name, value, "an object with role and content")
    _refuse_others(name, value)
    role = value.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise must_be(f"{name}.role", role, f"one of {', '.join(_ROLES)}")
    texts = {field: check(f"{name}.{field}", value[field]) for field, check in _TEXTS.items() if value.get(field)}
    return Message(_ROLES[role], _content(f"{name}.content", value.get("content")), **texts)


def _refuse_others(name: str, message: Mapping[str, Any]) -> None:
    for field, value in message.items():
        if field in ("role", "content", *_TEXTS) or value is None or (field in _OF_ANSWERS and value in ("", [])):
            continue
        known = f"{name}.{shown(field)[1:-1]}"
        raise wrong(known, f"{known} is not supported: remove it", code="unknown_field")


def _content(name: str, value: Any) -> str:
    """A text, or the texts of its parts a line each."""
    if is_text(value):
        return str(value)
    if not isinstance(value, list) or not value:
        raise must_be(name, value, "a text or a list of text parts")
    return "\n".join(_part(f"{name}.{place}", part) for place, part in enumerate(value))


def _part(name: str, value: Any) -> str:
    if not isinstance(value, dict) or value.get("type") != "text" or not is_text(value.get("text")):
        raise must_be(name, value, '{"type": "text", "text": a text}: other kinds are not supported')
    return str(value["text"])


_OWN: Mapping[str, Check] = {
    "messages": _messages,
    "logprobs": flag,
    "top_logprobs": whole(0, MOST_LOGPROBS),
    "stream_options": stream_options,
}
