from __future__ import annotations

from dataclasses import replace

import pytest

from actors.openai.seams import Unavailable
from tests.openai.apps import LIMITS, open_app
from tests.openai.asking import JSON, ask, look
from tests.openai.scripted import CARD, Scripted, spoken

MESSAGE = {"role": "user", "content": "a"}
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def test_models_are_listed_under_the_names_that_clients_give() -> None:
    listed = look(open_app(Scripted([])), "/v1/models")

    card = {"id": "tiny", "object": "model", "created": CARD.created, "owned_by": "kvcluster", "max_model_len": 512}
    assert (listed.status, listed.document) == (200, {"object": "list", "data": [card]})
    assert look(open_app(Scripted([])), "/v1/models/tiny").document == card


@pytest.mark.parametrize("path", ["/v1/models/none", "/v1/models/a/b"])
def test_a_model_that_is_not_served_is_not_found(path: str) -> None:
    assert look(open_app(Scripted([])), path).status == 404


def test_a_request_for_a_model_that_is_not_served_is_not_found() -> None:
    call = ask(open_app(Scripted([spoken("hi")])), COMPLETIONS, {"model": "none", "prompt": "a"})

    assert (call.status, call.error["code"], call.error["param"]) == (404, "model_not_found", "model")
    assert call.error["message"] == 'model "none" is not served here: GET /v1/models lists those that are'


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_a_request_for_a_model_that_is_starting_is_told_to_come_again(path: str) -> None:
    app = open_app(Scripted([], starting=frozenset({"late"})))
    body = {"model": "late", "prompt": "a"} if path == COMPLETIONS else {"model": "late", "messages": [MESSAGE]}
    for call in (ask(app, path, body), look(app, "/v1/models/late")):
        assert (call.status, call.error["code"], call.answer_headers["retry-after"]) == (503, "model_starting", "5")


def test_health_says_whether_anybody_can_compute() -> None:
    lost = Unavailable("starting", "no replica has started yet", retry_after_s=2.5)

    assert look(open_app(Scripted([])), "/health").status == 200
    call = look(open_app(Scripted([], lost=lost)), "/health")
    assert (call.status, call.error["code"], call.answer_headers["retry-after"]) == (503, "starting", "3")


def test_the_state_of_the_memory_is_what_whoever_has_it_says() -> None:
    assert look(open_app(Scripted([])), "/v1/kv").document == {"devices": []}
    lost = Unavailable("starting", "no replica has started yet", retry_after_s=2.5)
    assert look(open_app(Scripted([], lost=lost)), "/v1/kv").status == 503


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/none", 404),
        ("GET", "/v1/models/", 404),
        ("GET", "/docs", 404),
        ("GET", "/openapi.json", 404),
        ("GET", "/\udce4".encode("utf-8", "surrogateescape").decode("latin-1"), 404),
        ("GET", COMPLETIONS, 405),
        ("DELETE", "/v1/models", 405),
    ],
)
def test_an_unknown_route_or_method_is_told_so_in_the_form_of_every_error(method: str, path: str, status: int) -> None:
    call = look(open_app(Scripted([])), path, method=method)

    assert call.status == status
    assert set(call.error) == {"message", "type", "param", "code"}
    assert ("allow" in call.answer_headers) == (status == 405)


@pytest.mark.parametrize("given", [None, "Bearer wrong", "secret", "Basic secret", "Bearer secret ", "Bearer \xff"])
def test_nothing_but_health_is_open_without_the_api_key(given: str | None) -> None:
    app = open_app(Scripted([spoken("hi")]), replace(LIMITS, api_key="secret"))
    headers = JSON | ({"authorization": given} if given else {})

    call = ask(app, COMPLETIONS, {"model": "tiny", "prompt": "a"}, headers=headers)
    assert (call.status, call.error["code"]) == (401, "invalid_api_key")
    assert look(app, "/v1/models", headers=headers).status == 401
    assert look(app, "/v1/none", headers=headers).status == 401
    assert look(app, "/health", headers=headers).status == 200


def test_where_the_application_has_a_prefix_health_is_open_too_and_nothing_else() -> None:
    app = open_app(Scripted([spoken("hi")]), replace(LIMITS, api_key="secret"))

    assert look(app, "/llm/health", root_path="/llm").status == 200
    assert look(app, "/llm/v1/models", root_path="/llm").status == 401
    assert look(app, "/llm/health").status == 401


def test_whoever_sends_the_api_key_is_answered_and_it_is_never_shown() -> None:
    limits = replace(LIMITS, api_key="secret")
    headers = JSON | {"authorization": "bearer secret"}  # HTTP: the scheme's case is of no matter

    call = ask(
        open_app(Scripted([spoken("hi")]), limits), COMPLETIONS, {"model": "tiny", "prompt": "a"}, headers=headers
    )
    assert call.status == 200
    assert "secret" not in repr(limits)
