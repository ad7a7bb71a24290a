"""From the loop's thread to those who wait in an event loop: what a step said is handed over in one call.

The loop never waits for a reader. What a reader has not taken yet lies in its `Answer`, which is bounded by the
request itself: one piece a token that was asked for, and one for its beginning and its end. Knows neither Ray nor HTTP.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Protocol

from kvcluster.services.completion import Completion, CompletionRequest, Refused, Said


class Service(Protocol):
    """Whoever computes (`kvcluster.services.request.RequestService`), as far as it counts here."""

    def submit(self, key: int, request: CompletionRequest) -> None: ...

    def cancel(self, key: int) -> None: ...


class Answer:
    """What is said of one request, as it comes. Used in the event loop."""

    def __init__(self, key: int) -> None:
        self.key = key
        self.is_over = False
        self._said: list[Said] = []
        self._has_last = False
        self._news = asyncio.Event()

    def take_in(self, said: Said) -> None:
        """What comes after the last word is not heard."""
        if self._has_last:
            return
        self._has_last = isinstance(said, Completion | Refused)
        self._said.append(said)
        self._news.set()

    async def more(self) -> list[Said]:
        """All that was said since the last time; waits for something. With the last of it the answer is over."""
        await self._news.wait()
        self._news.clear()
        said, self._said = self._said, []
        self.is_over = self._has_last
        return said


class Answers:
    """Those of one replica that are awaited."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._awaited: dict[int, Answer] = {}
        self._keys = itertools.count(1)
        self._last: Refused | None = None

    # --- in the event loop ----------------------------------------------------------------------------------------

    @contextmanager
    def awaited(self) -> Iterator[Answer]:
        """An answer under a key of its own, in the block; after `end` it is that last word at once."""
        self._loop = asyncio.get_running_loop()
        answer = Answer(next(self._keys))
        self._awaited[answer.key] = answer
        if self._last is not None:
            answer.take_in(self._last)
        try:
            yield answer
        finally:
            del self._awaited[answer.key]

    def _sort(self, told: list[tuple[int, Said]]) -> None:
        for key, said in told:
            if answer := self._awaited.get(key):  # nobody waits for what was cancelled
                answer.take_in(said)

    def _end(self, last: Refused) -> None:
        for answer in self._awaited.values():
            answer.take_in(last)

    # --- from any thread ------------------------------------------------------------------------------------------

    def hand_over(self, told: list[tuple[int, Said]]) -> None:
        """What was said, each under its key."""
        if told and self._loop is not None:
            with suppress(RuntimeError):  # the event loop is closed: everybody who waited has gone
                self._loop.call_soon_threadsafe(self._sort, told)

    def end(self, last: Refused) -> None:
        """Nothing more will be said: `last` is the last word of every answer that is not over, and of later ones."""
        self._last = self._last or last  # and then the look at the loop; `awaited` sets that, and then looks at this
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._end, self._last)


def _anyhow(answer: Answer) -> AbstractContextManager[object]:
    return nullcontext()


async def computed(
    request: CompletionRequest,
    service: Service,
    answers: Answers,
    *,
    within: Callable[[Answer], AbstractContextManager[object]] = _anyhow,
) -> AsyncGenerator[list[Said], None]:
    """What `service` says of `request`, through `answers`, until its last word; `within` what it is awaited.

    Closing it before that cancels the request.
    """
    with answers.awaited() as answer, within(answer):
        try:
            service.submit(answer.key, request)
            while not answer.is_over:
                yield await answer.more()
        finally:
            if not answer.is_over:
                service.cancel(answer.key)
