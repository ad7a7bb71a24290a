"""Whatever bytes a client sends, it is told what is wrong with them: never a 5xx, always OpenAI's body."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.openai import body as body_room
from actors.openai.body import LET_GO_BYTES
from actors.openai.fields import TAKEN
from kvcluster.services.given import LET_BE, NEUTRAL
from kvcluster.units import MIB
from tests.openai import apps
from tests.openai.apps import open_app
from tests.openai.asking import JSON, Call, ask, run
from tests.openai.scripted import Scripted, spoken

ROUTES = ("/v1/completions", "/v1/chat/completions")
ASKED = {"model": "tiny", "prompt": "abc", "messages": [{"role": "user", "content": "abc"}]}
LIMITS = replace(apps.LIMITS, most_body_bytes=1_000_000)


def assert_told(call: Call) -> None:
    """An answer, or an error of the client's in the form of all errors."""
    assert call.status in (200, 400, 404, 413)
    if call.status != 200:
        assert set(call.error) == {"message", "type", "param", "code"}
        assert call.error["message"]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"  \n",
        b"\x00",
        b"\xff\xfe{}",
        b"\xef\xbb\xbf{}",
        b'{"model": "tiny", "prompt": "\xc3"}',
        b"[]",
        b"null",
        b'"text"',
        b"{",
        b'{"model": "tiny"} {}',
        b'{"model": NaN}',
        b'{"temperature": -Infinity}',
        b'{"model": "tiny", "prompt": "a", "messages": null, "metadata": NaN}',
        b'{"temperature": 1e999, "model": "tiny", "prompt": "a"}',
        b'{"n": ' + b"9" * 100_000 + b"}",
        b'{"n": -0.0e5, "model": "tiny"}',
        b'{"model": "tiny", "model": "tiny"}',
        b'{"metadata": {"a": 1, "a": 2}}',
        b'{"\\ud800": 1}',
        b'{"\\ud800": 1, "\\ud800": 2}',
        b'{"metadata": "\\ud800", "model": "\\udfff"}',
        b"[" * 200_000,
        b'{"a":' * 100_000,
        b'{"prompt": ' + b"[" * 900 + b"]" * 900 + b', "model": "tiny"}',
        b'{"logit_bias": ' + b'{"a":' * 900 + b"1" + b"}" * 900 + b', "model": "tiny"}',
        gzip.compress(b'{"model": "tiny"}', mtime=0),
    ],
)
def test_a_body_that_is_no_request_is_the_clients_error(route: str, body: bytes) -> None:
    call = ask(open_app(Scripted([spoken("hi")]), LIMITS), route, body)

    assert call.status == 400
    assert_told(call)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": ""},
        {"content-type": "application/json", "content-encoding": "gzip"},
        {"content-type": "\xff"},
    ],
)
def test_a_body_of_another_kind_is_the_clients_error(route: str, headers: dict[str, str]) -> None:
    call = ask(open_app(Scripted([spoken("hi")]), LIMITS), route, ASKED, headers=headers)

    assert call.status == 400
    assert_told(call)


@pytest.mark.parametrize("length", ["-5", "5_0", "\xb2", "no", ""])
def test_a_length_that_is_none_is_not_believed(length: str) -> None:
    body = {"model": "tiny", "prompt": "abc"}
    call = ask(open_app(Scripted([spoken("hi")]), LIMITS), ROUTES[0], body, headers=JSON | {"content-length": length})

    assert call.status == 200


@pytest.mark.parametrize("length", [{}, {"content-length": "60000000"}, {"content-length": "9" * 5_000}])
def test_a_body_that_is_too_large_goes_by_before_its_client_is_told(length: dict[str, str]) -> None:
    call = Call(open_app(Scripted([]), LIMITS), ROUTES[0], [b"x" * 600_000] * 100, headers=JSON | length)

    run(call)
    assert (call.status, call.error["code"], call.unsent) == (413, "body_too_large", [])
    assert call.answer_headers["connection"] == "close"


def test_a_body_without_end_is_left_and_one_that_waits_for_leave_to_come_is_not_called() -> None:
    waits = {"content-length": "60000000", "expect": "100-continue"}
    for headers, chunk_count, left in ((JSON, 1_000, 1_000 - LET_GO_BYTES // MIB - 2), (JSON | waits, 100, 100)):
        call = Call(open_app(Scripted([]), LIMITS), ROUTES[0], [b"x" * MIB] * chunk_count, headers=headers)
        run(call)
        assert (call.status, len(call.unsent)) == (413, left)


def test_a_client_that_sends_too_slowly_is_told_so_and_its_place_is_another_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_room, "READ_S", 0.01)
    monkeypatch.setattr(body_room, "LET_GO_S", 0.01)
    app = open_app(Scripted([spoken("hi")]), replace(LIMITS, most_streams=1))
    call = Call(app, ROUTES[0], (b"{",))
    call.unsent.clear()

    run(call)
    assert (call.status, call.error["code"], call.answer_headers["connection"]) == (408, "body_too_slow", "close")
    monkeypatch.setattr(body_room, "READ_S", 30.0)
    assert ask(app, ROUTES[0], {"model": "tiny", "prompt": "abc"}).status == 200


@given(body=st.binary(max_size=200), route=st.sampled_from(ROUTES))
def test_no_bytes_are_an_error_of_the_server(body: bytes, route: str) -> None:
    assert_told(ask(open_app(Scripted([spoken("hi")]), LIMITS), route, body))


FIELDS = st.sampled_from(sorted({*TAKEN, *LET_BE, *NEUTRAL, "prompt", "messages", "logprobs", "stream_options", "x"}))
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["\ud800", "tiny", "user", "text"])
)
KEYS = st.sampled_from(["role", "content", "type", "text", "name", "include_usage", "tool_calls", "\udc00"])
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3))


@given(fields=st.dictionaries(FIELDS, VALUES, max_size=4), route=st.sampled_from(ROUTES))
def test_no_json_is_an_error_of_the_server(fields: dict[str, Any], route: str) -> None:
    own = {name: value for name, value in ASKED.items() if (name == "messages") == ("chat" in route)}
    own["model"] = "tiny"
    assert_told(ask(open_app(Scripted([spoken("hi")]), LIMITS), route, json.dumps(own | fields).encode()))
