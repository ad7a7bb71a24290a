"""The routes of OpenAI's API, over whatever computes: an ASGI application that holds nothing but requests in hand.

    POST /v1/completions, POST /v1/chat/completions      an answer
    GET /v1/models, GET /v1/models/{id}                  which models there are
    GET /v1/kv                                           the state of the memory, JSON
    GET /health                                          open to all: 200 where requests can be computed, else 503

Every error has OpenAI's body, those of unknown routes and wrong methods too. Documentation pages are left out: they
load scripts from elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from actors.openai.answering import Answering, Desk
from actors.openai.doorkeeping import Doorkeeper
from actors.openai.forms import CHAT, COMPLETIONS
from actors.openai.limits import Limits
from actors.openai.observer import Observer, Unobserved
from actors.openai.places import Places
from actors.openai.problems import NOT_FOUND, Problem, our_bug, unavailable
from actors.openai.seams import ModelCard, Models, Unavailable
from actors.openai.tokenizing import Tokenizing
from kvcluster.services.pacing import Pace

_CODES = {NOT_FOUND: "route_not_found", 405: "method_not_allowed"}


def open_app(
    models: Models,
    limits: Limits,
    *,
    observer: Observer | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> FastAPI:
    """The application that serves `models`. It has nothing to close."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    places = Places(limits.most_streams, Pace(least_s=1.0, most_s=60.0, clock=clock))
    desk = Desk(models, limits, observer or Unobserved(), clock, places, Tokenizing())
    for form in (COMPLETIONS, CHAT):
        app.router.routes.append(Route(form.path, Answering(desk, form), methods=["POST"]))
    for path, view in _views(desk).items():
        app.router.routes.append(Route(path, view, methods=["GET"]))
    for error, handler in _HANDLERS.items():
        app.add_exception_handler(error, handler)
    app.add_middleware(Doorkeeper, api_key=limits.api_key)
    return app


def _views(desk: Desk) -> Mapping[str, Callable[[Request], Awaitable[Response]]]:
    async def list_models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [_model(card) for card in desk.models.cards()]})

    async def one_model(request: Request) -> Response:
        return JSONResponse(_model(desk.card(request.path_params["name"])))

    async def kv(request: Request) -> Response:
        return JSONResponse(dict(await desk.models.kv()))

    async def health(request: Request) -> Response:
        await desk.models.ready()
        return JSONResponse({"status": "ok"})

    return {"/v1/models": list_models, "/v1/models/{name:path}": one_model, "/v1/kv": kv, "/health": health}


def _model(card: ModelCard) -> dict[str, Any]:
    return {
        "id": card.id,
        "object": "model",
        "created": card.created,
        "owned_by": card.owned_by,
        "max_model_len": card.max_model_len,
    }


def as_response(problem: Problem) -> Response:
    """The answer that a problem is."""
    return JSONResponse(problem.body(), status_code=problem.status, headers=problem.headers())


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # as registered
    code = _CODES.get(error.status_code, "invalid_request")
    sentence = f"{request.method} {request.url.path!a} is not served here: {error.detail}"
    response = as_response(Problem(error.status_code, code, sentence))
    response.headers.update(error.headers or {})
    return response


async def _problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)  # as registered
    return as_response(error)


async def _unavailable(request: Request, error: Exception) -> Response:
    assert isinstance(error, Unavailable)  # as registered
    return as_response(unavailable(error))


async def _bug(request: Request, error: Exception) -> Response:
    return as_response(our_bug())


_HANDLERS = {HTTPException: _no_route, Problem: _problem, Unavailable: _unavailable, Exception: _bug}
