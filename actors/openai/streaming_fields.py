"""`stream` and `stream_options`: whether an answer is streamed, and what is counted in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from actors.openai.asked import Stream
from actors.openai.checks import Check, flag, must_be
from actors.openai.problems import wrong
from kvcluster.services.given import shown

_OPTIONS: Mapping[str, Check] = {
    "include_usage": flag,
    "continuous_usage_stats": flag,  # vLLM's
    "include_obfuscation": flag,  # OpenAI pads its events against those who see their sizes; it changes no answer
}


def stream_options(name: str, value: Any) -> Mapping[str, bool]:
    """The options that are given."""
    if not isinstance(value, dict):
        raise must_be(name, value, "an object")
    given = {option: chosen for option, chosen in value.items() if chosen is not None}
    for option in given:
        if option not in _OPTIONS:
            known = f"{name}.{shown(option)[1:-1]}"
            raise wrong(known, f"{known} is not supported: remove it", code="unknown_field")
    return {option: _OPTIONS[option](f"{name}.{option}", chosen) for option, chosen in given.items()}


def stream_of(values: Mapping[str, Any]) -> Stream | None:
    """How the answer is streamed, if it is.

    Raises:
        Problem: options without a stream.
    """
    options = values.get("stream_options")
    if not values.get("stream", False):
        if options:
            raise wrong("stream_options", "stream_options must be given only with stream true")
        return None
    options = options or {}
    return Stream(options.get("include_usage", False), options.get("continuous_usage_stats", False))
