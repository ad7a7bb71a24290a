"""Clients that leave: at random points of their request, or so slowly that the server has to wait for them.

A slow reader asks for events of about a kilobyte (`logprobs`) through a receive buffer of the smallest size, so that
its stream is longer than what the kernel keeps, and the server's own buffers fill.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from benchmarks.serving.bodies import Random
from benchmarks.serving.client import BROKEN, OK, Target, connected, events, posted, read_head

AT_ONCE = 50
MOST_WAIT_S = 60.0
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closed by RST, as a client that crashed
SMALLEST_BUFFER = 2304


class Point(StrEnum):
    """Where a client leaves."""

    CONNECTED = "connected"
    HALF_SENT = "half of the request sent"
    SENT = "request sent"
    BEGUN = "headers read"
    FIRST_TOKEN = "first token read"
    MID_STREAM = "amid the stream"


@dataclass(frozen=True, slots=True)
class Slow:
    """`for_s` seconds of one byte each; the half that finishes then reads the rest at full speed."""

    for_s: float
    max_tokens: int


async def drop_all(target: Target, count: int, *, seed: int = 1) -> dict[str, int]:
    """So many clients that leave, AT_ONCE at a time: how many left where."""
    chance, gate = random.Random(seed), asyncio.Semaphore(AT_ONCE)
    bodies = Random(target.model, prompt_tokens=24, max_tokens=64, seed=seed)

    async def one(body: Mapping[str, Any], point: Point, resets: bool) -> str:
        async with gate:
            return await _dropped(target, body, point, resets)

    drops = [one(bodies(), chance.choice(list(Point)), chance.random() < 0.5) for _ in range(count)]
    return dict(sorted(Counter(await asyncio.gather(*drops)).items()))


async def _dropped(target: Target, body: Mapping[str, Any], point: Point, resets: bool) -> str:
    request = posted(target, body)
    try:
        async with asyncio.timeout(MOST_WAIT_S), connected(target) as (reader, writer):
            if resets:
                _raw(writer).setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            if point is Point.CONNECTED:
                return str(point)
            writer.write(request[: len(request) // 2] if point is Point.HALF_SENT else request)
            await writer.drain()
            if point in (Point.HALF_SENT, Point.SENT):
                return str(point)
            return await _left_in_answer(reader, point)
    except TimeoutError:
        return f"nothing came within {MOST_WAIT_S:.0f} s"
    except BROKEN:
        return "the server closed"


async def _left_in_answer(reader: asyncio.StreamReader, point: Point) -> str:
    status, headers = await read_head(reader)
    if status != OK:
        return f"status {status}"
    if point is Point.BEGUN:
        return str(point)
    heard = 0
    async for _ in events(reader, headers):
        heard += 1
        if heard == (1 if point is Point.FIRST_TOKEN else 20):
            break
    return str(point)


async def read_slowly(target: Target, count: int, slow: Slow) -> dict[str, int]:
    """So many slow readers at once: what became of each. Every second one drops, the others read to the end."""
    bodies = Random(target.model, prompt_tokens=8, max_tokens=slow.max_tokens, logprobs=5)
    reads = [_read_slowly(target, bodies(), slow, finishes=number % 2 == 0) for number in range(count)]
    return dict(sorted(Counter(await asyncio.gather(*reads)).items()))


async def _read_slowly(target: Target, body: Mapping[str, Any], slow: Slow, *, finishes: bool) -> str:
    """Over a bare socket, since a stream would read ahead."""
    loop = asyncio.get_running_loop()
    with socket.socket() as raw:
        raw.setblocking(False)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALLEST_BUFFER)
        try:
            await loop.sock_connect(raw, (target.host, target.port))
            await loop.sock_sendall(raw, posted(target, body))
            began = await _first_bytes(raw, slow)
            if not began.startswith(b"HTTP/1.1 200"):
                return f"status {began.split()[1].decode()}" if b" " in began else "the server closed"
            return await _rest(raw) if finishes else "dropped"
        except OSError:
            return "the server closed"


async def _first_bytes(raw: socket.socket, slow: Slow) -> bytes:
    """The status line, and then a byte a second."""
    loop = asyncio.get_running_loop()
    read = bytearray()
    while len(read) < len(b"HTTP/1.1 200 OK") and (byte := await loop.sock_recv(raw, 1)):
        read += byte
    for _ in range(round(slow.for_s)):
        await asyncio.sleep(1.0)
        if not await loop.sock_recv(raw, 1):
            break
    return bytes(read)


async def _rest(raw: socket.socket) -> str:
    loop = asyncio.get_running_loop()
    tail = b""
    while piece := await loop.sock_recv(raw, 1 << 16):
        tail = (tail + piece)[-4096:]
        if tail.endswith(b"0\r\n\r\n"):
            break
    return "whole" if b"[DONE]" in tail else "an error event" if b'"error"' in tail else "lost"


def _raw(writer: asyncio.StreamWriter) -> Any:
    return writer.get_extra_info("socket")
