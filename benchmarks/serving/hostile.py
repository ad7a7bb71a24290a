"""Requests that no client should send, and what must come back: an answer in the 400s with an error's body.

Each is the bytes after the connection is made. Where the server closes the connection instead of an answer, that is
told apart: for a head that is too large or never ends it is right, for a body it is not.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.serving.client import BROKEN, MOST_KEPT_BYTES, Target, connected, head, pieces, read_head

ANSWER_S, HEAD_S = 30.0, 5.0  # a head without an end has no answer to wait for
MB = 1_000_000
PIECE = b"x" * MB
CLOSED, SILENT = "closed", "silent"


@dataclass(frozen=True, slots=True)
class Met:
    """How a hostile request was met: `outcome` is a status, CLOSED or SILENT."""

    name: str
    outcome: str
    body: str = ""

    @property
    def is_fault(self) -> bool:
        """A 5xx; of a body also silence, an acceptance, or a refusal without an error's body.

        A head may be taken or waited for, however long it is: what counts is that nothing is kept of it afterwards.
        Whoever still sends 100 MB may see the connection's end before the answer to it.
        """
        if "head" in self.name:
            return self.outcome.startswith("5")
        if self.outcome == CLOSED:
            return "100 MB" not in self.name
        return not self.outcome.startswith("4") or '"error"' not in self.body


def bodies(model: str) -> Iterator[tuple[str, bytes]]:
    """Bodies of POST /v1/completions, each wrong in one way."""
    for name, value in _texts(model).items():
        yield name, value.encode("utf-8", "surrogatepass")
    yield "no body", b""
    yield "bytes that are no UTF-8", b'{"model": "\xff\xfe", "prompt": "a"}'
    yield "UTF-16", json.dumps({"model": model, "prompt": "a"}).encode("utf-16")
    yield "gzip", b"\x1f\x8b\x08\x00" + bytes(100)
    yield "zeros", bytes(1000)


def _texts(model: str) -> dict[str, str]:
    whole = {"model": model, "prompt": "a", "max_tokens": 4}
    texts = {f"{name} = {value!r:.30}": json.dumps({**whole, name: value}) for name, value in _WRONG}
    return {
        **texts,
        "deep list": "[" * 200_000,
        "deep list, closed": "[" * 100_000 + "]" * 100_000,
        "deep object": '{"a":' * 100_000 + "1" + "}" * 100_000,
        "a number of 100,000 digits": '{"model": "m", "prompt": "a", "max_tokens": ' + "9" * 100_000 + "}",
        "NaN": '{"model": "m", "prompt": "a", "temperature": NaN}',
        "Infinity": '{"model": "m", "prompt": "a", "temperature": 1e999}',
        "a lone surrogate": '{"model": "\\ud800", "prompt": "a"}',
        "half an object": '{"model": "m"',
        "two objects": "{}{}",
        "an array": "[]",
        "null": "null",
        "a string": '"a"',
    }


_WRONG: tuple[tuple[str, Any], ...] = (
    ("model", None),
    ("model", 5),
    ("model", "no such model"),
    ("model", "m" * MB),
    ("prompt", None),
    ("prompt", {}),
    ("prompt", [[]]),
    ("prompt", [-1]),
    ("prompt", [1 << 70]),
    ("prompt", [1, "a"]),
    ("prompt", "a" * (2 * MB)),
    ("prompt", [1] * 100_000),
    ("max_tokens", 0),
    ("max_tokens", -1),
    ("max_tokens", 1 << 80),
    ("max_tokens", "4"),
    ("max_tokens", True),
    ("max_tokens", 1.5),
    ("n", 0),
    ("n", 1_000_000),
    ("temperature", -1),
    ("temperature", "hot"),
    ("top_p", 2),
    ("seed", 1 << 70),
    ("stop", [""] * 1000),
    ("stop", 5),
    ("stream", "yes"),
    ("stream_options", []),
    ("logprobs", 10_000),
    ("logit_bias", {"5": 100}),
    ("suffix", "b"),
    ("echo", True),
    ("best_of", 7),
)


async def met(target: Target, name: str, send: Callable[[asyncio.StreamWriter], Any]) -> Met:
    """Send it and read the answer, whichever comes first: a server may answer before it has read everything."""
    try:
        async with asyncio.timeout(HEAD_S if "head" in name else ANSWER_S), connected(target) as (reader, writer):
            sending = asyncio.create_task(_sent(writer, send))
            try:
                status, headers = await read_head(reader)
                body = b"".join([piece async for piece in pieces(reader, headers)])
            finally:
                sending.cancel()
        return Met(name, str(status), body[:MOST_KEPT_BYTES].decode(errors="replace"))
    except TimeoutError:
        return Met(name, SILENT)
    except BROKEN as broken:
        return Met(name, CLOSED, f"{type(broken).__name__}: {broken}")


async def _sent(writer: asyncio.StreamWriter, send: Callable[[asyncio.StreamWriter], Any]) -> None:
    try:
        await send(writer)
    except OSError:
        return  # the reader sees it too


async def hostile_json(target: Target) -> list[Met]:
    """Every wrong body, one after the other."""
    return [await met(target, name, _whole(target, body)) for name, body in bodies(target.model)]


def _whole(target: Target, body: bytes) -> Callable[[asyncio.StreamWriter], Any]:
    async def send(writer: asyncio.StreamWriter) -> None:
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        writer.write(head(target, "/v1/completions", headers) + body)
        await writer.drain()

    return send


async def huge_bodies(target: Target, count: int) -> list[Met]:
    """100 MB each, half of them without a Content-Length, a few at once."""
    few = asyncio.Semaphore(4)

    async def one(number: int) -> Met:
        async with few:
            chunked = number % 2 == 1
            kind = "chunked" if chunked else "with its length"
            return await met(target, f"100 MB {kind}", _huge(target, chunked))

    return await asyncio.gather(*(one(number) for number in range(count)))


def _huge(target: Target, chunked: bool) -> Callable[[asyncio.StreamWriter], Any]:
    length = {"Transfer-Encoding": "chunked"} if chunked else {"Content-Length": str(100 * MB)}

    async def send(writer: asyncio.StreamWriter) -> None:
        writer.write(head(target, "/v1/completions", {"Content-Type": "application/json", **length}))
        for _ in range(100):
            writer.write(b"%x\r\n%b\r\n" % (MB, PIECE) if chunked else PIECE)
            await writer.drain()

    return send


async def header_floods(target: Target, count: int) -> list[Met]:
    """Heads of 10,000 lines, of one line of 1 MB, and without an end; all at once."""
    sends = {
        "head of 10,000 lines": b"".join(b"X-%d: y\r\n" % number for number in range(10_000)) + b"\r\n",
        "head with a line of 1 MB": b"X: " + PIECE + b"\r\n\r\n",
        "head of 16 MB without an end": b"X: " + PIECE * 16,
        "head that is no HTTP": b"\r\n\x00\x01\x02 nonsense\r\n\r\n",
    }
    floods = [(name, lines) for name, lines in sends.items() for _ in range(count // len(sends))]
    return await asyncio.gather(*(met(target, name, _flood(target, name, lines)) for name, lines in floods))


def _flood(target: Target, name: str, lines: bytes) -> Callable[[asyncio.StreamWriter], Any]:
    first = b"" if "no HTTP" in name else b"GET /v1/models HTTP/1.1\r\nHost: %b\r\n" % target.host.encode()

    async def send(writer: asyncio.StreamWriter) -> None:
        writer.write(first + lines)
        await writer.drain()

    return send
