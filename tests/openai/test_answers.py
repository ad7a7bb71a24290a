from __future__ import annotations

import math

import pytest

from kvcluster.services.completion import Begun, Completion, Delta, Likelihood, Telling
from tests.openai.apps import open_app
from tests.openai.asking import ask, texts_of
from tests.openai.scripted import Scripted, Step, spoken, spoken_twice

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
ASKED = {"model": "tiny", "prompt": "abc"}
CHATTED = {"model": "tiny", "messages": [{"role": "user", "content": "abc"}]}
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}


def test_an_answer_has_the_form_of_the_completions_route() -> None:
    call = ask(open_app(Scripted([spoken("He", "llo", cached_tokens=2)])), COMPLETIONS, ASKED)

    document = call.document
    assert document.pop("id").startswith("cmpl-")
    assert isinstance(document.pop("created"), int)
    assert document == {
        "object": "text_completion",
        "model": "tiny",
        "choices": [{"index": 0, "text": "Hello", "logprobs": None, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 2,
            "total_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 2},
        },
    }


def test_an_answer_has_the_form_of_the_chat_route() -> None:
    document = ask(open_app(Scripted([spoken("He", "llo")])), CHAT, CHATTED).document

    assert document["id"].startswith("chatcmpl-")
    assert document["object"] == "chat.completion"
    message = {"role": "assistant", "content": "Hello", "refusal": None}
    assert document["choices"] == [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}]


def test_the_parts_of_a_streamed_completion_are_its_text_and_the_last_counts() -> None:
    call = ask(open_app(Scripted([spoken("He", "", "llo", cached_tokens=1)])), COMPLETIONS, ASKED | STREAMED)

    *parts, last = call.events
    assert call.answer_headers["content-type"].startswith("text/event-stream")
    assert {event["object"] for event in call.events} == {"text_completion"}
    assert len({event["id"] for event in call.events}) == 1
    assert [part["choices"][0]["text"] for part in parts] == ["He", "llo"]
    assert [part["choices"][0]["finish_reason"] for part in parts] == [None, "stop"]
    assert [part["usage"] for part in parts] == [None, None]
    assert last["choices"] == []
    assert (last["usage"]["completion_tokens"], last["usage"]["prompt_tokens_details"]) == (3, {"cached_tokens": 1})


def test_a_streamed_chat_begins_with_its_role_and_ends_with_its_reason() -> None:
    events = ask(open_app(Scripted([spoken("He", "llo", "")])), CHAT, CHATTED | {"stream": True}).events

    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert [event["choices"][0]["delta"] for event in events] == [
        {"role": "assistant", "content": ""},
        {"content": "He"},
        {"content": "llo"},
        {},
    ]
    assert [event["choices"][0]["finish_reason"] for event in events] == [None, None, None, "stop"]
    assert all("usage" not in event for event in events)


def test_each_part_counts_what_was_said_by_then_where_that_is_asked_for() -> None:
    options = {"stream_options": {"continuous_usage_stats": True, "include_usage": True}}
    events = ask(open_app(Scripted([spoken("a", "b", "c")])), COMPLETIONS, ASKED | STREAMED | options).events

    assert [event["usage"]["completion_tokens"] for event in events] == [1, 2, 3, 3]


def test_choices_are_numbered_over_all_prompts() -> None:
    scripts = [spoken_twice("a", "b"), spoken_twice("c", "d")]
    body = ASKED | {"prompt": ["x", "y"], "n": 2}

    whole = ask(open_app(Scripted(scripts)), COMPLETIONS, body).document
    assert [(choice["index"], choice["text"]) for choice in whole["choices"]] == [
        (0, "a"),
        (1, "b"),
        (2, "c"),
        (3, "d"),
    ]
    assert (whole["usage"]["prompt_tokens"], whole["usage"]["completion_tokens"]) == (6, 4)
    events = ask(open_app(Scripted(scripts)), COMPLETIONS, body | {"stream": True}).events
    assert [texts_of(events, index) for index in range(4)] == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("ab", [(97, 98)]),
        ([5, 6], [(5, 6)]),
        (["a", "b"], [(97,), (98,)]),
        ([[5, 6], [7]], [(5, 6), (7,)]),
    ],
)
def test_a_prompt_is_a_text_or_ids_or_several_of_them(prompt: object, prompts: object) -> None:
    models = Scripted([spoken("hi")])

    assert ask(open_app(models), COMPLETIONS, ASKED | {"prompt": prompt}).status == 200
    assert [request.prompt for request in models.asked] == prompts


def test_what_is_asked_for_reaches_whoever_computes() -> None:
    models = Scripted([spoken("hi")])
    wanted = {
        "max_tokens": 7,
        "min_tokens": 2,
        "temperature": 0,
        "top_p": 0.5,
        "seed": -3,
        "ignore_eos": True,
        "cache_salt": "mine",
        "n": 1,
    }

    ask(open_app(models), COMPLETIONS, ASKED | wanted | {"stop": "end", "logprobs": 2, "user": "me", "best_of": 1})
    (request,) = models.asked
    assert {name: getattr(request, name) for name in wanted} == wanted
    assert (request.stop, request.logprobs, request.tells) == (("end",), 2, Telling.BEGUN)


def test_a_chat_without_max_tokens_may_fill_the_context_and_a_completion_has_sixteen() -> None:
    models = Scripted([spoken("hi")])

    ask(open_app(models), CHAT, CHATTED)
    ask(open_app(models), CHAT, CHATTED | {"max_completion_tokens": 4})
    ask(open_app(models), COMPLETIONS, ASKED | {"max_tokens": None})
    first, second, third = models.asked
    assert len(first.prompt) + first.max_tokens == 512
    assert (second.max_tokens, third.max_tokens) == (4, 16)


def test_a_chat_is_made_of_texts_and_of_text_parts_in_their_order() -> None:
    models = Scripted([spoken("hi")])
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    answered = {"role": "assistant", "content": "so", "refusal": None, "tool_calls": [], "annotations": []}
    messages = [{"role": "developer", "content": "be"}, {"role": "user", "content": parts, "name": "Ann"}, answered]

    assert ask(open_app(models), CHAT, CHATTED | {"messages": messages}).status == 200
    (request,) = models.asked
    text = "system: be\nuser (Ann): one\ntwo\nassistant: so\nassistant:"
    assert request.prompt == tuple(ord(letter) % 500 for letter in text)


LIKELY: list[Step] = [
    Begun(3, 0),
    Delta(0, "", 1, (Likelihood("\ufffd", -0.5, (("\ufffd", -0.5), ("\ufffd", -0.6), ("b", -2.0))),)),
    Delta(0, "äc", 2, (Likelihood("ä", -1.0), Likelihood("c", -math.inf, (("d", -0.1),))), "length"),
    Completion(
        "äc",
        "length",
        3,
        3,
        logprobs=(
            Likelihood("\ufffd", -0.5, (("\ufffd", -0.5), ("\ufffd", -0.6), ("b", -2.0))),
            Likelihood("ä", -1.0),
            Likelihood("c", -math.inf, (("d", -0.1),)),
        ),
    ),
]


def test_log_probabilities_of_completions_are_lists_beside_each_other() -> None:
    expected = {
        "tokens": ["\ufffd", "ä", "c"],
        "token_logprobs": [-0.5, -1.0, -9999.0],
        "top_logprobs": [{"\ufffd": -0.5, "b": -2.0}, {"ä": -1.0}, {"d": -0.1, "c": -9999.0}],
        "text_offset": [0, 1, 2],
    }

    whole = ask(open_app(Scripted([LIKELY])), COMPLETIONS, ASKED | {"logprobs": 3}).document
    assert whole["choices"][0]["logprobs"] == expected
    events = ask(open_app(Scripted([LIKELY])), COMPLETIONS, ASKED | {"logprobs": 3, "stream": True}).events
    parts = [event["choices"][0]["logprobs"] for event in events]
    assert {name: [one for part in parts for one in part[name]] for name in expected} == expected


def test_log_probabilities_of_chats_are_a_list_of_tokens() -> None:
    wanted = {"logprobs": True, "top_logprobs": 3}

    whole = ask(open_app(Scripted([LIKELY])), CHAT, CHATTED | wanted).document
    broken, umlaut, last = whole["choices"][0]["logprobs"]["content"]
    assert (broken["bytes"], umlaut["bytes"]) == (None, [0xC3, 0xA4])
    assert last == {
        "token": "c",
        "logprob": -9999.0,
        "bytes": [99],
        "top_logprobs": [{"token": "d", "logprob": -0.1, "bytes": [100]}],
    }
    events = ask(open_app(Scripted([LIKELY])), CHAT, CHATTED | wanted | {"stream": True}).events
    parts = [event["choices"][0]["logprobs"] for event in events[1:]]
    assert [token for part in parts for token in part["content"]] == [broken, umlaut, last]


def test_what_clients_take_for_ends_of_lines_is_none_in_an_event() -> None:
    call = ask(open_app(Scripted([spoken("a\u2028b\x85c\nd\re")])), COMPLETIONS, ASKED | {"stream": True})

    assert texts_of(call.events) == "a\u2028b\x85c\nd\re"
    assert len(b"".join(call.chunks).decode().splitlines()) == 4
