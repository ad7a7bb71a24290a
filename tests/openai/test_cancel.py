"""Whoever goes away is computed for no longer: the generator is closed before the endpoint ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from actors.openai.tokenizing import MOST_THREADS
from kvcluster.services.completion import Begun, Delta
from tests.openai.apps import open_app
from tests.openai.asking import Call
from tests.openai.scripted import CARD, LetterPrompts, Scripted, Step, spoken

STREAMED = b'{"model": "tiny", "prompt": ["a", "b"], "stream": true}'
WHOLE = b'{"model": "tiny", "prompt": ["a", "b"]}'

Leave = Callable[[Call, "asyncio.Task[None]"], object]


def cancel_often(running: asyncio.Task[None], times: int = 20) -> None:
    """Now, and at each of the next turns of the loop."""
    running.cancel()
    if times:
        asyncio.get_running_loop().call_soon(cancel_often, running, times - 1)


def leave_both_ways(call: Call, running: asyncio.Task[None]) -> None:
    call.gone.set()
    cancel_often(running)


LEAVES: dict[str, Leave] = {
    "the connection ends": lambda call, running: call.gone.set(),
    "the server gives the request up": lambda call, running: running.cancel(),
    "the server gives it up again and again": lambda call, running: cancel_often(running),
    "the connection ends, and the server gives it up too": leave_both_ways,
}


def begun(*, waits: asyncio.Event) -> list[Step]:
    return [Begun(3, 0), Delta(0, "He", 1), waits]


@pytest.mark.parametrize("how", LEAVES)
@pytest.mark.parametrize(
    ("body", "said", "chunks"),
    [(STREAMED, 0, 0), (WHOLE, 0, 0), (STREAMED, 2, 2), (WHOLE, 2, 0)],
    ids=["before a stream began", "before a whole answer began", "while it streams", "while the whole is computed"],
)
def test_a_client_that_goes_away_is_computed_for_no_longer(how: str, body: bytes, said: int, chunks: int) -> None:
    async def story() -> None:
        script = begun(waits=asyncio.Event()) if said else [asyncio.Event()]
        models = Scripted([script])
        call = Call(open_app(models), "/v1/completions", (body,))
        running = asyncio.create_task(call.run())
        async with asyncio.timeout(30):
            while len(models.asked) < 2 or models.heard < 2 * said or len(call.chunks) < chunks:
                await asyncio.sleep(0)
        assert models.open_count == 2
        LEAVES[how](call, running)
        with suppress(asyncio.CancelledError):
            await running
        assert models.open_count == 0
        assert len(call.chunks) == chunks

    asyncio.run(story())


class HeldPrompts(LetterPrompts):
    """Each text takes until it is let go."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.let_go = threading.Event()

    def encode(self, text: str) -> tuple[int, ...]:
        self.started.append(text)
        self.let_go.wait()
        return super().encode(text)


def test_clients_that_go_away_while_their_prompts_are_encoded_start_no_more_threads_than_there_are_places() -> None:
    async def story() -> None:
        prompts = HeldPrompts()
        app = open_app(Scripted([spoken("a")], tokenizer=prompts, card=replace(CARD, max_model_len=10_000)))
        body = b'{"model": "tiny", "prompt": "%s"}' % (b"a" * 3_000)
        for _ in range(6):
            call = Call(app, "/v1/completions", (body,))
            running = asyncio.create_task(call.run())
            for _ in range(100):
                await asyncio.sleep(0)
            call.gone.set()
            await running
            assert call.status is None
        prompts.let_go.set()
        last = Call(app, "/v1/completions", (body,))
        await last.run()
        assert (last.status, len(prompts.started)) == (200, MOST_THREADS + 1)

    asyncio.run(story())


def test_a_client_that_goes_away_while_it_sends_its_body_leaves_nothing() -> None:
    async def story() -> None:
        models = Scripted([spoken("a")])
        call = Call(open_app(models), "/v1/completions", (b"{",))
        call.unsent[:] = []
        call.gone.set()
        await call.run()
        assert (call.status, models.asked) == (None, [])

    asyncio.run(story())


def test_a_client_that_closes_while_it_is_written_to_is_computed_for_no_longer() -> None:
    class Closed(Call):
        async def _send(self, message: object) -> None:
            raise OSError("closed")

    async def story() -> None:
        models = Scripted([begun(waits=asyncio.Event())])
        await Closed(open_app(models), "/v1/completions", (STREAMED,)).run()
        assert models.open_count == 0

    asyncio.run(story())


def test_no_more_is_heard_than_a_slow_reader_takes() -> None:
    async def story() -> None:
        models = Scripted([spoken(*"abcdefghijklmnopqrstuvwxyz")])
        call = Call(open_app(models), "/v1/completions", (b'{"model": "tiny", "prompt": "a", "stream": true}',))
        call.reads.clear()
        running = asyncio.create_task(call.run())
        for _ in range(1_000):
            await asyncio.sleep(0)
        assert models.heard <= 3  # what it began with, one word on its way, and one at the door
        call.reads.set()
        await running
        assert models.heard == 28

    asyncio.run(story())
