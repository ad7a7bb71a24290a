"""What is said of all prompts of one HTTP request, as one stream.

A task a prompt listens; all of them hand over through one place that has room for one word, so that nobody is heard
faster than the client reads. Nothing is read beyond the first word of a prompt before each has had its own: until then
the whole may still be refused. What is said meanwhile waits behind its voice (Serve's queue in this process, by gRPC),
and is at most the answer.

    async with heard(streams) as hearing:
        await hearing.begun()              each has memory, or one was refused and raises
        async for number, said in hearing.words(): Delta and Completion, until each prompt has its Completion

Leaving the block in whatever way, cancelled once or again and again, closes every generator before it is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager

from actors.openai.endings import to_their_end
from actors.openai.problems import refused, unavailable
from actors.openai.seams import Unavailable
from kvcluster.services.completion import Begun, Completion, Delta, Refused, Said

Voice = AsyncGenerator[Said, None]


class Hearing:
    """Of as many prompts as there are voices, numbered from 0."""

    def __init__(self, voices: Sequence[Voice]) -> None:
        self._count = len(voices)
        self._voices = voices
        self._listeners: list[asyncio.Task[None]] = []
        self._words: asyncio.Queue[tuple[int, Said | BaseException]] = asyncio.Queue()
        self._room = asyncio.Semaphore(1)  # for a word; how a listener failed needs none
        self._all_begun = asyncio.Event()
        self._closing: set[int] = set()  # prompts whose voice is being closed

    def begin(self) -> None:
        """Listen to all of them, until `end`. Within a running loop."""
        self._listeners = [asyncio.create_task(self._listen(*each)) for each in enumerate(self._voices)]
        for listener in self._listeners:
            listener.add_done_callback(self._over)

    async def end(self) -> None:
        """Close them all. Whoever waits for it may be cancelled meanwhile, and is so once they are closed."""
        for number, listener in enumerate(self._listeners):
            if number not in self._closing:  # what closes its voice is let do so
                listener.cancel()
        await to_their_end(self._listeners)

    async def begun(self) -> list[Begun]:
        """What each began with, once each has begun.

        Raises:
            Problem: one was refused, or whoever computes it is lost. The others are computed until the block is left.
        """
        begun: dict[int, Begun] = {}
        while len(begun) < self._count:
            number, said = await self._next()
            assert isinstance(said, Begun)  # whatever else a prompt may be told first has raised
            begun[number] = said
        self._all_begun.set()
        return [begun[number] for number in range(self._count)]

    async def words(self) -> AsyncIterator[tuple[int, Delta | Completion]]:
        """What is said after that, until each prompt is answered whole.

        Raises:
            Problem: as above.
        """
        whole = 0
        while whole < self._count:
            number, said = await self._next()
            assert not isinstance(said, Begun)  # said once
            whole += isinstance(said, Completion)
            yield number, said

    async def _listen(self, number: int, voice: Voice) -> None:
        """Hand over all that `voice` says, until its last word; and close it, however this ends."""
        try:
            async for said in voice:
                await self._room.acquire()
                self._words.put_nowait((number, said))
                if isinstance(said, Begun):
                    await self._all_begun.wait()
                if isinstance(said, Completion | Refused):
                    return
        finally:
            self._closing.add(number)
            await voice.aclose()
        raise Unavailable("cut_short", "the answer ended before it was whole: ask again", retry_after_s=1.0)

    def _over(self, listener: asyncio.Task[None]) -> None:
        """Hand over how it failed, if it did."""
        if not listener.cancelled() and (error := listener.exception()):
            self._words.put_nowait((0, error))

    async def _next(self) -> tuple[int, Begun | Delta | Completion]:
        number, said = await self._words.get()
        self._room.release()
        if isinstance(said, Refused):
            raise refused(said)
        if isinstance(said, Unavailable):
            raise unavailable(said)
        if isinstance(said, BaseException):
            raise said
        return number, said


@asynccontextmanager
async def heard(voices: Sequence[Voice]) -> AsyncIterator[Hearing]:
    """A hearing of these, each of which is closed when the block is left."""
    hearing = Hearing(voices)
    hearing.begin()
    try:
        yield hearing
    finally:
        await hearing.end()
