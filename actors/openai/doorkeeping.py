"""Who may ask: whoever sends the API key, where one is set. Health is open to all, for whoever watches the server."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any

from starlette.datastructures import Headers

from actors.openai.body import Body, Gone, Receive
from actors.openai.problems import UNAUTHORIZED, Problem
from actors.openai.reply import Reply, Send

_OPEN_PATHS = ("/health",)
_ASGIApp = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]


class Doorkeeper:
    """ASGI middleware; of a request without the key no more than its headers is looked at."""

    def __init__(self, app: _ASGIApp, api_key: str | None) -> None:
        self._app = app
        self._api_key = None if api_key is None else api_key.encode()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._may_enter(scope):
            await self._app(scope, receive, send)
            return
        sentence = "the API key is missing or wrong: send it in the header authorization, as Bearer and the key"
        with suppress(Gone):
            await Body(Headers(scope=scope), receive).let_go()
            await Reply(send).problem(Problem(UNAUTHORIZED, "invalid_api_key", sentence))

    def _may_enter(self, scope: MutableMapping[str, Any]) -> bool:
        path = scope["path"].removeprefix(scope.get("root_path", ""))  # Serve's route_prefix
        if self._api_key is None or path in _OPEN_PATHS:
            return True
        scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        is_the_key = hmac.compare_digest(given.encode("latin-1"), self._api_key)  # as long, whatever they share
        return is_the_key and scheme.lower() == "bearer"
