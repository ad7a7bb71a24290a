"""The models of an endpoint as its HTTP side sees them (`actors.openai.seams.Models`), over handles of Ray Serve.

Whatever goes wrong between here and a replica is `Unavailable`: a replica that died, one that is nowhere to be had, a
queue of Serve's own that is full. Nothing is asked twice: a replica that died may have begun, and what a client was
told cannot be taken back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, RayServeException

from actors.causes import cause_of
from actors.kv_state import kv_state
from actors.openai.seams import ModelCard, Prompts, Unavailable
from actors.served_model import RELOAD_S, REPLICA_LOST
from kvcluster.services.completion import Completion, CompletionRequest, Refused, Said

TAKEN_S = 10.0  # until a replica has taken a request
READY_S = 3.0  # for an answer to "are you ready"
CROWDED_S = 1.0  # when Serve's own queue is full
ENDING, NOBODY, CROWDED = "shutting_down", "no_replica", "server_busy"
_TOO_MANY = 429


@dataclass(frozen=True, slots=True)
class ServedEntry:
    """A model: its card, its tokenizer, and the handle of its deployment."""

    card: ModelCard
    prompts: Prompts
    handle: Any


class ServedModels:
    """`Models` of one gateway. Used in its event loop."""

    def __init__(self, entries: Sequence[ServedEntry]) -> None:
        self._entries = {entry.card.id: entry for entry in entries}
        self._streaming = {name: entry.handle.options(stream=True) for name, entry in self._entries.items()}
        self._is_ending = False
        self._under_way = 0

    def cards(self) -> Sequence[ModelCard]:
        return [entry.card for entry in self._entries.values()]

    def prompts(self, model: str) -> Prompts:
        return self._entries[model].prompts

    async def generate(self, model: str, request: CompletionRequest) -> AsyncGenerator[Said, None]:
        """As `Models.generate`."""
        self._check_goes_on()
        response = self._streaming[model].generate.remote(request)
        is_over = False
        self._under_way += 1
        try:
            async with aclosing(_said(response)) as said:
                async for each in said:
                    is_over = isinstance(each, Completion | Refused)
                    yield each
        finally:
            self._under_way -= 1
            if not is_over:
                response.cancel()

    async def kv(self) -> Mapping[str, Any]:
        return await kv_state()

    async def ready(self) -> None:
        """As `Models.ready`: some replica of each model says so."""
        self._check_goes_on()
        await asyncio.gather(*(_check_ready(name, entry.handle) for name, entry in self._entries.items()))

    def end(self) -> int:
        """New requests are Unavailable from now on; how many are still under way, which go on."""
        self._is_ending = True
        return self._under_way

    def _check_goes_on(self) -> None:
        if self._is_ending:
            raise Unavailable(ENDING, "the endpoint is ending: ask another one, or again later", retry_after_s=RELOAD_S)


async def _said(response: Any) -> AsyncGenerator[Said, None]:
    """One after another. Raises Unavailable."""
    try:
        await asyncio.wait_for(anext(response), TAKEN_S)
        async for said in response:
            for each in said:
                yield each
    except TimeoutError:
        sentence = f"no replica of the model took the request within {TAKEN_S:.0f} s"
        raise Unavailable(NOBODY, sentence, retry_after_s=RELOAD_S) from None
    except BackPressureError:
        sentence = "more requests wait for a replica than may: ask again"
        yield Refused(_TOO_MANY, CROWDED, sentence, retry_after_s=CROWDED_S)
    except (RayError, RayServeException) as error:
        raise _unavailable(error) from None


async def _check_ready(name: str, handle: Any) -> None:
    """Raises Unavailable."""
    try:
        refused: Refused | None = await asyncio.wait_for(handle.ready.remote(), READY_S)
    except TimeoutError:
        raise Unavailable(NOBODY, f"no replica of {name} answers", retry_after_s=RELOAD_S) from None
    except (RayError, RayServeException) as error:
        raise _unavailable(error) from None
    if refused is not None:
        raise Unavailable(refused.code, refused.message, retry_after_s=refused.retry_after_s or RELOAD_S)


def _unavailable(error: RayError | RayServeException) -> Unavailable:
    """What Ray says of a replica. An error that the replica itself raised is a bug of ours, and goes on as it is."""
    if isinstance(error, RayTaskError):
        raise error
    sentence = f"the replica that computed this is lost: {cause_of(error)}"
    return Unavailable(REPLICA_LOST, sentence, retry_after_s=RELOAD_S)
