"""One HTTP answer as it is sent: one JSON document, or server-sent events that come as they are made.

Each `await` here waits until the server has taken what was sent. Uvicorn takes no more than its write buffer holds;
Ray Serve takes all at once (2.60), so that what a slow client has not read waits there: at most its whole answer. All
text is sent as ASCII, the rest of Unicode escaped: some clients' readers take U+2028 and U+0085 for ends of lines, and
half a surrogate pair is no UTF-8.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from actors.openai.body import Gone
from actors.openai.problems import Problem

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

OF_EVENTS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache", "x-accel-buffering": "no"}
DONE = b"data: [DONE]\n\n"


class Reply:
    """To one request; each method raises Gone where the client is seen to be away."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._streams = False

    async def document(self, document: Mapping[str, Any], *, status: int = 200, headers: Mapping[str, str]) -> None:
        """All of it. Nothing can be sent after that."""
        body = encoded(document)
        length = {"content-type": "application/json", "content-length": str(len(body))}
        await self._start(status, {**length, **headers})
        await self._body(body, more=False)

    async def open_stream(self) -> None:
        """The headers of a stream of events."""
        self._streams = True
        await self._start(200, OF_EVENTS)

    async def event(self, document: Mapping[str, Any]) -> None:
        """One event of the stream."""
        await self._body(b"data: " + encoded(document) + b"\n\n", more=True)

    async def end(self) -> None:
        """The stream's last event, and its end."""
        await self._body(DONE, more=False)

    async def problem(self, problem: Problem) -> None:
        """The problem, as what there is to send by now: an answer of its own, or the stream's last event but one."""
        if not self._streams:
            await self.document(problem.body(), status=problem.status, headers=problem.headers())
            return
        await self.event(problem.body())
        await self.end()

    async def _start(self, status: int, headers: Mapping[str, str]) -> None:
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self._sent({"type": "http.response.start", "status": status, "headers": raw})

    async def _body(self, body: bytes, *, more: bool) -> None:
        await self._sent({"type": "http.response.body", "body": body, "more_body": more})

    async def _sent(self, message: MutableMapping[str, Any]) -> None:
        try:
            await self._send(message)
        except OSError:  # ASGI: the client has closed the connection
            raise Gone from None


def encoded(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
