from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from actors.openai.limits import Limits
from actors.openai.seams import Message
from actors.openai.tokenizing import BEGINNING
from kvcluster.services.completion import Telling
from kvcluster.services.given import LET_BE
from tests.openai.apps import LIMITS, open_app
from tests.openai.asking import ask
from tests.openai.scripted import CARD, LetterPrompts, Scripted, spoken

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
ASKED = {"model": "tiny", "prompt": "abc"}
CHATTED = {"model": "tiny", "messages": [{"role": "user", "content": "abc"}]}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", 5),
        ("model", "\ud800"),
        ("prompt", ""),
        ("prompt", []),
        ("prompt", [[]]),
        ("prompt", ["a", 1]),
        ("prompt", [1, True]),
        ("prompt", [-1]),
        ("prompt", [2**31]),
        ("prompt", {"text": "a"}),
        ("prompt", "half \udc00"),
        ("max_tokens", 0),
        ("max_tokens", "5"),
        ("max_tokens", 5.0),
        ("max_tokens", True),
        ("min_tokens", -1),
        ("n", 0),
        ("n", 129),
        ("best_of", 2),
        ("temperature", 2.1),
        ("temperature", False),
        ("temperature", 10**400),
        ("top_p", 0),
        ("top_p", 1.5),
        ("seed", 2**63),
        ("stop", ["a", "b", "c", "d", "e"]),
        ("stop", ""),
        ("stop", [1]),
        ("stream", 1),
        ("stream", "true"),
        ("stream_options", {"include_usage": True}),
        ("logprobs", 21),
        ("logprobs", True),
        ("ignore_eos", "yes"),
        ("cache_salt", 7),
        ("cache_salt", "a" * 257),
        ("echo", True),
        ("stop", "a" * 1025),
        ("suffix", "end"),
        ("presence_penalty", 0.1),
        ("frequency_penalty", False),
        ("logit_bias", {"5": 1}),
        ("response_format", {"type": "json_object"}),
        ("tools", [{"type": "function"}]),
        ("tool_choice", "required"),
        ("top_k", 5),
        ("repetition_penalty", 1.1),
        ("use_beam_search", True),
        ("no_such_field", 1),
        ("messages", [{"role": "user", "content": "a"}]),
    ],
)
def test_a_field_that_cannot_be_taken_is_named_and_nothing_is_computed(name: str, value: object) -> None:
    models = Scripted([spoken("hi")])

    call = ask(open_app(models), COMPLETIONS, ASKED | {name: value})
    assert (call.status, call.error["param"], call.error["type"]) == (400, name, "invalid_request_error")
    assert call.error["message"].startswith(name)
    assert models.asked == []


def test_options_of_a_stream_are_checked_by_name() -> None:
    for options, param in (({"no_such": 1}, "stream_options.no_such"), ({"include_usage": 1}, None), (5, None)):
        call = ask(open_app(Scripted([])), COMPLETIONS, ASKED | {"stream": True, "stream_options": options})
        assert call.status == 400
        assert call.error["param"] == (param or call.error["message"].split()[0])


@pytest.mark.parametrize(
    ("param", "messages"),
    [
        ("messages", []),
        ("messages", "hello"),
        ("messages.0", ["hello"]),
        ("messages.0.role", [{"content": "a"}]),
        ("messages.0.role", [{"role": "robot", "content": "a"}]),
        ("messages.0.role", [{"role": ["user"], "content": "a"}]),
        ("messages.1.content", [{"role": "user", "content": "a"}, {"role": "assistant", "content": None}]),
        ("messages.0.content", [{"role": "user", "content": 5}]),
        ("messages.0.content.0", [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
        ("messages.0.content.0", [{"role": "user", "content": ["a"]}]),
        ("messages.0.name", [{"role": "user", "content": "a", "name": 5}]),
        ("messages.0.tool_calls", [{"role": "assistant", "content": "a", "tool_calls": [{}]}]),
        ("messages.0.thoughts", [{"role": "assistant", "content": "a", "thoughts": "b"}]),
        ("messages", [{"role": "tool", "content": "what the template does not take"}]),
    ],
)
def test_a_message_that_cannot_be_taken_is_named(param: str, messages: object) -> None:
    call = ask(open_app(Scripted([])), CHAT, CHATTED | {"messages": messages})

    assert (call.status, call.error["param"]) == (400, param)


@pytest.mark.parametrize("name", ["model", "prompt"])
def test_a_field_that_is_missing_is_named(name: str) -> None:
    body = {field: value for field, value in ASKED.items() if field != name}

    call = ask(open_app(Scripted([])), COMPLETIONS, body)
    assert (call.status, call.error["code"], call.error["param"]) == (400, "missing_field", name)


def test_fields_that_change_no_text_are_let_be() -> None:
    body = dict.fromkeys(LET_BE, "whatever")

    assert ask(open_app(Scripted([spoken("hi")])), COMPLETIONS, ASKED | body).status == 200
    assert ask(open_app(Scripted([spoken("hi")])), CHAT, CHATTED | body).status == 200


def test_fields_that_we_have_not_are_taken_at_the_values_that_change_nothing() -> None:
    neutral: dict[str, Any] = {
        "presence_penalty": 0.0,
        "frequency_penalty": 0,
        "logit_bias": {},
        "response_format": {"type": "text"},
        "tools": [{"type": "function"}],
        "tool_choice": "none",
        "repetition_penalty": 1.0,
        "top_k": -1,
        "echo": False,
        "suffix": None,
        "no_such_field": None,
    }

    assert ask(open_app(Scripted([spoken("hi")])), COMPLETIONS, ASKED | neutral).status == 200


def test_two_lengths_that_differ_are_not_chosen_between() -> None:
    call = ask(open_app(Scripted([])), CHAT, CHATTED | {"max_tokens": 5, "max_completion_tokens": 6})

    assert (call.status, call.error["param"]) == (400, "max_tokens")


def test_likeliest_tokens_are_refused_where_no_log_probabilities_are_asked_for() -> None:
    call = ask(open_app(Scripted([])), CHAT, CHATTED | {"top_logprobs": 2})

    assert (call.status, call.error["param"]) == (400, "top_logprobs")


def test_no_more_texts_or_prompts_than_the_limits_are_asked_for() -> None:
    app = open_app(Scripted([]), replace(LIMITS, most_choices=3, most_prompts=2, most_n=2))

    for body, param in (({"n": 3}, "n"), ({"prompt": ["a", "b"], "n": 2}, "n"), ({"prompt": ["a"] * 3}, "prompt")):
        call = ask(app, COMPLETIONS, ASKED | body)
        assert (call.status, call.error["param"]) == (400, param)


@pytest.mark.parametrize(
    ("limits", "body"),
    [
        (LIMITS, {"prompt": "a" * 500, "max_tokens": 13}),
        (LIMITS, {"prompt": "a" * 512}),
        (replace(LIMITS, most_prompt_tokens=10), {"prompt": [1] * 11}),
    ],
)
def test_a_prompt_that_does_not_fit_is_told_the_figures(limits: Limits, body: dict[str, Any]) -> None:
    call = ask(open_app(Scripted([]), limits), COMPLETIONS, ASKED | body)

    assert (call.status, call.error["code"]) == (400, "context_length_exceeded")
    assert str(len(body["prompt"])) in call.error["message"]


@pytest.mark.parametrize(
    ("context_tokens", "limit"),
    [
        (None, "the model's context is 226 tokens"),
        (8192, "the KV memory here takes at most 226 tokens of one text (the model's context is 8192)"),
    ],
)
def test_what_limits_a_text_is_named_for_what_it_is(context_tokens: int | None, limit: str) -> None:
    models = Scripted([], card=replace(CARD, max_model_len=226, context_tokens=context_tokens))
    call = ask(open_app(models), COMPLETIONS, ASKED | {"prompt": [1] * 27, "max_tokens": 200})

    assert call.error["message"] == f"prompt has 27 tokens and max_tokens is 200: 227 together, and {limit}"


def test_long_prompts_are_encoded_like_short_ones_and_in_their_order() -> None:
    models = Scripted([spoken("hi")], card=replace(CARD, max_model_len=10_000))
    prompts = [letter * 3_000 for letter in "abcd"]

    assert ask(open_app(models), COMPLETIONS, ASKED | {"prompt": prompts}).status == 200
    assert [request.prompt for request in models.asked] == [(ord(letter),) * 3_000 for letter in "abcd"]


class CountsLetters(LetterPrompts):
    """A token for each run of one letter."""

    def __init__(self) -> None:
        self.letters = 0

    def encode(self, text: str) -> tuple[int, ...]:
        self.letters += len(text)
        return tuple(ord(letter) % 500 for letter, _ in itertools.groupby(text))


@pytest.mark.parametrize("route", [COMPLETIONS, CHAT])
def test_a_text_that_is_far_too_long_is_not_read_to_its_end(route: str) -> None:
    prompts = CountsLetters()
    text = "ab" * 1_000_000
    asked = {"prompt": text} if route == COMPLETIONS else {"messages": [{"role": "user", "content": text}]}

    call = ask(open_app(Scripted([], tokenizer=prompts)), route, {"model": "tiny"} | asked)
    assert (call.status, call.error["code"]) == (400, "context_length_exceeded")
    assert prompts.letters == BEGINNING * CARD.max_model_len


def test_a_text_of_many_letters_and_few_tokens_is_taken() -> None:
    models = Scripted([spoken("hi")], tokenizer=CountsLetters())

    assert ask(open_app(models), COMPLETIONS, ASKED | {"prompt": "a" * 100_000 + "b"}).status == 200
    assert models.asked[0].prompt == (ord("a"), ord("b"))


class NotesThreads(LetterPrompts):
    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []

    def chat(self, messages: Sequence[Message]) -> tuple[int, ...]:
        self.threads.append(threading.current_thread())
        return super().chat(messages)


@pytest.mark.parametrize(
    "message",
    [{"content": "a" * 300}, {"content": "", "name": "a" * 256}, {"content": ""}],
    ids=["long texts", "long names", "many messages"],
)
def test_a_chat_that_takes_long_to_encode_does_not_hold_the_event_loop(message: dict[str, str]) -> None:
    prompts = NotesThreads()
    models = Scripted([spoken("hi")], card=replace(CARD, max_model_len=100_000), tokenizer=prompts)

    for count in (1, 100):
        body = CHATTED | {"messages": [{"role": "user"} | message] * count}
        assert ask(open_app(models), CHAT, body).status == 200
    short, long = prompts.threads
    assert short is threading.main_thread() is not long


def test_a_value_of_any_size_is_shown_short() -> None:
    call = ask(open_app(Scripted([])), COMPLETIONS, ASKED | {"stop": {"a" * 10_000: "\u2028"}})

    assert len(json.dumps(call.error)) < 400


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [False, True])
def test_only_a_streamed_answer_is_wanted_in_parts(path: str, stream: bool) -> None:
    models = Scripted([spoken("a", "b")])
    body = {"prompt": "ab"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "ab"}]}
    ask(open_app(models), path, {"model": "tiny", "stream": stream} | body)
    assert [request.tells for request in models.asked] == [Telling.PARTS if stream else Telling.BEGUN]
