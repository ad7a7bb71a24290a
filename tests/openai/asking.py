"""A client of an ASGI application in this process, that may stop reading, and go away, whenever it wants to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI

JSON = {"content-type": "application/json"}
SOON_S = 30.0  # longer than anything here takes


@dataclass(slots=True)
class Call:
    """One request. `arrived` is set with each message of the answer; while `reads` is clear none is taken."""

    app: FastAPI
    path: str
    body: Sequence[bytes] = ()
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=lambda: JSON)
    spec_version: str = "2.3"
    root_path: str = ""
    status: int | None = None
    answer_headers: dict[str, str] = field(default_factory=dict)
    chunks: list[bytes] = field(default_factory=list)
    reads: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: asyncio.Condition = field(default_factory=asyncio.Condition)
    unsent: list[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.unsent = list(self.body) or [b""]
        self.reads.set()

    async def run(self) -> None:
        """Until the application is through with it."""
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": self.spec_version},
            "http_version": "1.1",
            "method": self.method,
            "scheme": "http",
            "path": self.path,
            "raw_path": self.path.encode("ascii", "ignore"),
            "query_string": b"",
            "root_path": self.root_path,
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in self.headers.items()],
            "server": ("test", 80),
            "client": ("test", 1),
        }
        async with asyncio.timeout(SOON_S):
            await self.app(scope, self._receive, self._send)

    async def until(self, count: int) -> None:
        """Until so many chunks of the body have come."""
        async with asyncio.timeout(SOON_S), self.arrived:
            await self.arrived.wait_for(lambda: len(self.chunks) >= count)

    @property
    def document(self) -> Any:
        return json.loads(b"".join(self.chunks))

    @property
    def error(self) -> Any:
        return self.document["error"]

    @property
    def events(self) -> list[Any]:
        """The events of a stream, but for the [DONE] that must end it."""
        *events, end, rest = b"".join(self.chunks).split(b"\n\n")
        assert (end, rest) == (b"data: [DONE]", b"")
        assert all(event.startswith(b"data: ") for event in events)
        return [json.loads(event.removeprefix(b"data: ")) for event in events]

    async def _receive(self) -> MutableMapping[str, Any]:
        if self.unsent:
            return {"type": "http.request", "body": self.unsent.pop(0), "more_body": bool(self.unsent)}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        await self.reads.wait()
        async with self.arrived:
            if message["type"] == "http.response.start":
                self.status = message["status"]
                self.answer_headers = {name.decode(): value.decode() for name, value in message["headers"]}
            elif message["body"]:
                self.chunks.append(message["body"])
            self.arrived.notify_all()


def ask(app: FastAPI, path: str, body: Mapping[str, Any] | bytes, **parts: Any) -> Call:
    """The whole answer to one POST."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return run(Call(app, path, (raw,), **parts))


def look(app: FastAPI, path: str, **parts: Any) -> Call:
    """The whole answer to one GET."""
    return run(Call(app, path, **{"method": "GET", "headers": {}, **parts}))


def run(call: Call) -> Call:
    asyncio.run(call.run())
    return call


def texts_of(events: Iterable[Any], index: int = 0) -> str:
    """What a choice of /v1/completions said in all."""
    return "".join(choice["text"] for event in events for choice in event["choices"] if choice["index"] == index)
