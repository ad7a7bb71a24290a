"""The models of an endpoint as its HTTP side sees them (`actors.openai.seams.Models`), over handles of Ray Serve.

Whatever goes wrong between here and a replica is `Unavailable`: a replica that died, one that is nowhere to be had, a
queue of Serve's own that is full. Nothing that was taken is asked twice: a replica that died may have begun, and what
a client was told cannot be taken back.

Answers come over Serve's own gRPC between replicas, not as Ray's objects, which cost the gateway more (decision 0020).
A message of that has at most 4 MiB, and what may come near it goes as objects.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from contextvars import Context
from dataclasses import dataclass
from typing import Any

from ray.serve.exceptions import BackPressureError

from actors.crowding import Crowding
from actors.kv_state import kv_state
from actors.losses import MAY_BE_LOSS, loss_of
from actors.openai.places import Full
from actors.openai.seams import ModelCard, Prompts, Unavailable
from actors.presence import NOBODY, Presence
from actors.readiness import Readiness
from actors.served_model import RELOAD_S, lost
from kvcluster.services.completion import BUSY, TOO_MANY, Completion, CompletionRequest, Refused, Said

TAKEN_S = 10.0  # until a replica has taken a request
CROWDED_S = 1.0  # when Serve's own queue is full
ENDING = "shutting_down"
MOST_BY_GRPC_BYTES = 1 << 20  # of a guess; the limit is four times that (RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH)
_ID_BYTES, _TEXT_BYTES, _LIKELIHOOD_BYTES = 8, 16, 64  # pickled, of a token: rather too many


@dataclass(frozen=True, slots=True)
class ServedEntry:
    """A model under the name that clients give: its tokenizer, the handle of its deployment, and what is known of its
    replicas: whether they are there, and whether they are full. `created` is in seconds since 1970.
    """

    name: str
    created: int
    prompts: Prompts
    handle: Any
    presence: Presence
    crowding: Crowding


class ServedModels:
    """`Models` of one gateway. Used in its event loop."""

    def __init__(self, entries: Sequence[ServedEntry], *, caller: str) -> None:
        """`caller` is the name of this process's actor: what it asks for ends with it."""
        self._caller = caller
        self._entries = {entry.name: entry for entry in entries}
        self._by_grpc = {name: _streaming(entry.handle, objects=False) for name, entry in self._entries.items()}
        self._by_objects = {name: _streaming(entry.handle, objects=True) for name, entry in self._entries.items()}
        self._readiness = Readiness({name: entry.handle for name, entry in self._entries.items()})
        self._is_ending = False
        self._under_way = 0

    async def watch(self) -> None:
        """Know of each model whether its replicas are there, until cancelled: before that it is Unavailable."""
        await asyncio.gather(*(entry.presence.watch() for entry in self._entries.values()))

    @property
    def are_there(self) -> bool:
        """Whether each model has been met, and was there when it was last asked."""
        with suppress(Unavailable):
            for entry in self._entries.values():
                entry.presence.check()
            return True
        return False

    def cards(self) -> Sequence[ModelCard]:
        return [card for entry in self._entries.values() if (card := _card(entry))]

    def check_known(self, name: str) -> None:
        """As `Models.check_known`."""
        if (entry := self._entries.get(name)) and entry.presence.facts is None:
            entry.presence.check()

    def prompts(self, model: str) -> Prompts:
        return self._entries[model].prompts

    async def generate(self, model: str, request: CompletionRequest) -> AsyncGenerator[Said, None]:
        """As `Models.generate`."""
        self._check_goes_on()
        self._entries[model].presence.check()
        crowding = self._entries[model].crowding
        try:
            with crowding.visit(request.n) as visit:
                async with aclosing(self._heard(model, request)) as said:
                    async for each in said:
                        visit.heard(each)
                        yield each
        except Full as full:
            sentence = f"the replicas of {model} are busy: ask again in {full.retry_after_s:.1f} s"
            yield Refused(TOO_MANY, BUSY, sentence, full.retry_after_s, free_bytes=crowding.free_bytes)

    async def _heard(self, model: str, request: CompletionRequest) -> AsyncGenerator[Said, None]:
        """What a replica says; raises Unavailable."""
        handles = self._by_objects if may_be_large(request) else self._by_grpc
        response = _by_itself(handles[model].generate.remote, request, self._caller)
        is_over = False
        self._under_way += 1
        try:
            async with aclosing(_each_word(response, self._entries[model].presence)) as said:
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
        for entry in self._entries.values():
            entry.presence.check()
        await self._readiness.check()

    def end(self) -> int:
        """New requests are Unavailable from now on; how many are still under way, which go on."""
        self._is_ending = True
        return self._under_way

    def _check_goes_on(self) -> None:
        if self._is_ending:
            raise Unavailable(ENDING, "the endpoint is ending: ask another one, or again later", retry_after_s=RELOAD_S)


def _streaming(handle: Any, *, objects: bool) -> Any:
    return handle.options(stream=True, _by_reference=objects)


def may_be_large(request: CompletionRequest) -> bool:
    """Whether the request or its whole answer may be too much for one message of gRPC."""
    a_token = _TEXT_BYTES + (0 if request.logprobs is None else _LIKELIHOOD_BYTES * (1 + request.logprobs))
    return _ID_BYTES * len(request.prompt) + request.n * request.max_tokens * a_token > MOST_BY_GRPC_BYTES


def _by_itself(call: Callable[..., Any], *arguments: Any) -> Any:
    """Serve's call, in a context of its own.

    Else all calls for one HTTP request have its number, by which a router that keeps no order (`actors.router`) looks
    up who waits: of several it finds one, and the others are never sent (Ray 2.60).
    """
    return Context().run(call, *arguments)


async def _each_word(response: Any, presence: Presence) -> AsyncGenerator[Said, None]:
    """One after another. Raises Unavailable."""
    try:
        await _taken(response, presence)
        async for said in response:
            for each in said:
                yield each
    except BackPressureError:
        sentence = "more requests wait for a replica than may: ask again"
        yield Refused(TOO_MANY, BUSY, sentence, retry_after_s=CROWDED_S)
    except MAY_BE_LOSS as error:
        if (why := loss_of(error)) is None:
            raise
        refused = lost(why)
        raise Unavailable(refused.code, refused.message, retry_after_s=RELOAD_S) from None


async def _taken(response: Any, presence: Presence) -> None:
    """The first word, which says only that a replica has the request. Raises Unavailable where none has."""
    try:
        async with asyncio.timeout(TAKEN_S):  # not wait_for: Python 3.11's loses a cancel that comes with the answer
            await anext(response)
    except TimeoutError:
        presence.missed()
        sentence = f"no replica of the model took the request within {TAKEN_S:.0f} s"
        raise Unavailable(NOBODY, sentence, retry_after_s=RELOAD_S) from None


def _card(entry: ServedEntry) -> ModelCard | None:
    """None where nobody has told yet how long its texts may be."""
    if (facts := entry.presence.facts) is None:
        return None
    context_tokens = facts.context_tokens if facts.context_tokens > facts.most_tokens else None
    return ModelCard(entry.name, entry.created, facts.most_tokens, context_tokens=context_tokens, room=facts.room)
