"""A body for /v1/completions: one prompt or several, each a text or token ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from actors.openai.asked import Asked
from actors.openai.checks import Check, must_be, whole
from actors.openai.fields import check_choices, given, max_tokens_of, of_request
from actors.openai.limits import Limits
from actors.openai.problems import wrong
from actors.openai.streaming_fields import stream_of, stream_options
from kvcluster.services.completion import MOST_LOGPROBS, CompletionRequest, Telling
from kvcluster.services.given import MOST_TOKENS, is_text

DEFAULT_MAX_TOKENS = 16  # OpenAI's

Prompts = tuple[str | tuple[int, ...], ...]


def completion_asked(document: Mapping[str, Any], limits: Limits) -> Asked:
    """What `document` asks for.

    Raises:
        Problem: the first thing that is wrong with it.
    """
    values = given(document, _OWN)
    prompts = values.get("prompt")
    if prompts is None:
        raise wrong("prompt", "prompt is missing", code="missing_field")
    if len(prompts) > limits.most_prompts:
        raise wrong("prompt", f"prompt holds {len(prompts)} prompts, and one request may have {limits.most_prompts}")
    check_choices(values, limits, prompts=len(prompts))
    stream = stream_of(values)
    request = CompletionRequest(
        (), logprobs=values.get("logprobs"), tells=Telling.PARTS if stream else Telling.BEGUN, **of_request(values)
    )
    max_tokens = max_tokens_of(values) or DEFAULT_MAX_TOKENS
    return Asked(values["model"], prompts, max_tokens, stream, request)


def _prompts(name: str, value: Any) -> Prompts:
    """A text, ids, or a list of either; a list of numbers is one prompt."""
    if is_text(value):
        return (value,)
    if isinstance(value, list) and value:
        if _are_ids(value):
            return (tuple(value),)
        if all(is_text(one) for one in value):
            return tuple(value)
        if all(isinstance(one, list) and one and _are_ids(one) for one in value):
            return tuple(tuple(one) for one in value)
    raise must_be(name, value, "a text, a list of token ids, or a list of several of either kind, none empty")


def _are_ids(values: list[Any]) -> bool:
    """In C: a prompt may have as many as its body has room for."""
    return set(map(type, values)) == {int} and min(values) >= 0 and max(values) <= MOST_TOKENS


_OWN: Mapping[str, Check] = {
    "prompt": _prompts,
    "logprobs": whole(0, MOST_LOGPROBS),
    "stream_options": stream_options,
}
