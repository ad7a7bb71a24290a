"""A body for /v1/completions is taken, or refused, in a batch file as it is over HTTP.

But for what only one of the two is about: over HTTP a request names its model, may be streamed and hold several
prompts; a file's line may search with beams, and say which of several texts it is.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from actors.openai.completion_fields import completion_asked
from actors.openai.documents import document_of
from actors.openai.limits import Limits
from actors.openai.problems import Problem
from kvcluster.services.batch.fields import WrongField, request_of
from kvcluster.services.batch.input import document_of as document_of_line

LIMITS = Limits(
    most_body_bytes=1 << 20,
    most_prompt_tokens=None,
    most_prompts=32,
    most_choices=128,
    most_n=128,
    most_streams=8,
    api_key=None,
)
NUMBERS = st.sampled_from([-1, 0, 1, 2, 3, 0.0, 0.5, 1.0, 2.0, 2.5, -2.0, 128, 129, 2**31 - 1, 2**31, 2**63, 10**400])
FLAGS = st.booleans() | st.sampled_from([0, 1, "true"])
TEXTS = st.sampled_from(["a", "", "\ud800", "a" * 256, "a" * 257, "a" * 1024, "a" * 1025])
LISTS = st.sampled_from([[], ["a"], ["a", ""], ["a"] * 4, ["a"] * 5, ["a" * 1025], [1], {}, {"a": 1}])
VALUES = st.none() | NUMBERS | FLAGS | TEXTS | LISTS
BOTH_TAKE = ("max_tokens", "temperature", "top_p", "seed", "stop", "ignore_eos", "n", "best_of", "cache_salt")
CHANGE_NOTHING = (
    "stream_options",
    "echo",
    "suffix",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "response_format",
    "tools",
    "tool_choice",
    "top_k",
    "metadata",
    "user",
    "store",
    "no_such_field",
)
BODIES = st.dictionaries(st.sampled_from([*BOTH_TAKE, *CHANGE_NOTHING]), VALUES, max_size=4)


def is_taken_of_a_file(body: dict[str, Any]) -> bool:
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}
    try:
        request_of(document_of_line(json.dumps(line).encode()))
    except WrongField:
        return False
    return True


def is_taken_over_http(body: dict[str, Any]) -> bool:
    try:
        completion_asked(document_of(json.dumps(body).encode()), LIMITS)
    except Problem:
        return False
    return True


@given(body=BODIES)
@example(body={"stop": ["a" * 1025]})
@example(body={"metadata": float("nan")})
@example(body={"n": 3, "best_of": 3})
@example(body={"n": 3, "best_of": 2})
@example(body={"tools": [{}], "tool_choice": "none"})
def test_what_one_takes_the_other_takes_too(body: dict[str, Any]) -> None:
    whole = {"model": "m", "prompt": "a", **body}
    assert is_taken_of_a_file(whole) == is_taken_over_http(whole)


@pytest.mark.parametrize(
    "body",
    [
        {"stream": False},
        {"stream": None, "stream_options": {}},
        {"echo": False},
        {"best_of": 1},
        {"n": 2, "best_of": 2},
        {"presence_penalty": 0},
        {"frequency_penalty": 0.0},
        {"logit_bias": {}},
        {"suffix": ""},
        {"store": True},
        {"min_tokens": 0},
        {"sample": 0},
        {"use_beam_search": False, "length_penalty": 1, "early_stopping": False},
        {"prompt": [1, 2], "stop": [], "cache_salt": ""},
    ],
    ids=str,
)
def test_what_changes_nothing_is_taken_by_both(body: dict[str, Any]) -> None:
    whole = {"model": "m", "prompt": "a", **body}
    assert (is_taken_of_a_file(whole), is_taken_over_http(whole)) == (True, True)


@pytest.mark.parametrize(
    "body",
    [
        {"stop": "a" * 1025},
        {"echo": True},
        {"best_of": 2},
        {"best_of": True},
        {"presence_penalty": False},
        {"logit_bias": {"5": 1}},
        {"use_beam_search": False, "length_penalty": 2},
        {"early_stopping": True},
        {"metadata": {"a": float("inf")}},
        {"prompt": [True]},
        {"prompt": "\udc00"},
        {"no_such_field": 0},
    ],
    ids=str,
)
def test_what_would_change_a_text_or_is_no_json_is_refused_by_both(body: dict[str, Any]) -> None:
    whole = {"model": "m", "prompt": "a", **body}
    assert (is_taken_of_a_file(whole), is_taken_over_http(whole)) == (False, False)
