"""The bytes of one request's body: read as they arrive and no further than is allowed, or let go by.

A client that still sends when the server closes gets a reset, and often never sees the answer that told it why. So
what is not read is let go by before the answer, up to a length and for a time, at no cost of memory; but not where the
client waits to be told that it should send at all (`expect: 100-continue`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any

from actors.openai.problems import TOO_LARGE, TOO_SLOW, Problem
from kvcluster.units import MIB, format_bytes

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

READ_S = 30.0  # a client that sends slower than this holds a place that others wait for
LET_GO_BYTES = 256 * MIB
LET_GO_S = 10.0
_LONGEST_LENGTH = 18  # digits


class Gone(Exception):
    """The client went away. Nobody is left to be told anything."""


class Body:
    """Of a request with these headers. It can be read once."""

    def __init__(self, headers: Mapping[str, str], receive: Receive) -> None:
        self._length = headers.get("content-length", "")
        self._waits = headers.get("expect", "").lower() == "100-continue"
        self._receive = receive
        self._has_more = True

    async def read(self, *, most_bytes: int) -> bytes:
        """All of it.

        Raises:
            Problem: it is larger (413), or takes longer than `READ_S` (408). The rest is not read yet.
            Gone: the client went away before it was whole.
        """
        if self._length.isdecimal() and (len(self._length) > _LONGEST_LENGTH or int(self._length) > most_bytes):
            raise _too_large(most_bytes)
        try:
            async with asyncio.timeout(READ_S):
                return await self._whole(most_bytes)
        except TimeoutError:
            raise Problem(TOO_SLOW, "body_too_slow", f"the body must be here within {READ_S:.0f} s") from None

    async def let_go(self) -> None:
        """What was not read goes by; of a client that goes on for too long, the rest stays.

        Raises:
            Gone: the client went away before that.
        """
        if self._waits:
            return
        left = LET_GO_BYTES
        with suppress(TimeoutError):
            async with asyncio.timeout(LET_GO_S):
                async for chunk in self._chunks():
                    left -= len(chunk)
                    if left < 0:
                        return

    async def _whole(self, most_bytes: int) -> bytes:
        body = bytearray()
        async for chunk in self._chunks():
            body += chunk
            if len(body) > most_bytes:
                raise _too_large(most_bytes)
        return bytes(body)

    async def _chunks(self) -> AsyncIterator[bytes]:
        while self._has_more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Gone
            self._has_more = message.get("more_body", False)
            self._waits = False  # whoever is read from was told to send
            yield message.get("body", b"")


def _too_large(most_bytes: int) -> Problem:
    return Problem(TOO_LARGE, "body_too_large", f"the body must be at most {format_bytes(most_bytes)}")
