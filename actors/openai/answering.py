"""One request for an answer, from its body to the last byte: the ASGI endpoint of both routes.

    read the body, check it, make tokens      a problem: its status
    hear whoever computes                     refused before it began: its status; headers only after that
    send what is said, or the whole           a problem: in a stream an event, then its end; else its status

A client that goes away, at any of these, cancels the rest at once: the generators are closed before the endpoint ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, MutableMapping
from dataclasses import dataclass, replace
from typing import Any

from starlette.datastructures import Headers

from actors.openai.answer import Answer
from actors.openai.asked import Asked, Stream
from actors.openai.body import Body, Gone, Receive
from actors.openai.documents import check_headers, document_of
from actors.openai.endings import to_their_end
from actors.openai.fitting import check_fits
from actors.openai.forms import Form
from actors.openai.hearing import Hearing, heard
from actors.openai.limits import Limits
from actors.openai.observer import Observer
from actors.openai.places import Full, Places
from actors.openai.problems import NOT_FOUND, Problem, crowded, our_bug, unavailable
from actors.openai.record import Record
from actors.openai.reply import Reply, Send
from actors.openai.seams import ModelCard, Models, Unavailable
from actors.openai.tokenizing import Tokenizing, fitting_tokens
from kvcluster.services.completion import Completion, CompletionRequest
from kvcluster.services.given import shown


@dataclass(frozen=True, slots=True)
class Desk:
    """What all requests share."""

    models: Models
    limits: Limits
    observer: Observer
    clock: Callable[[], float]
    places: Places
    tokenizing: Tokenizing

    def card(self, name: str) -> ModelCard:
        """Of the model that is served under `name`.

        Raises:
            Problem: none is.
            Unavailable: as `Models.check_known`.
        """
        for card in self.models.cards():
            if card.id == name:
                return card
        self.models.check_known(name)
        sentence = f"model {shown(name)} is not served here: GET /v1/models lists those that are"
        raise Problem(NOT_FOUND, "model_not_found", sentence, param="model")


class Answering:
    """The endpoint of one route."""

    def __init__(self, desk: Desk, form: Form) -> None:
        self._desk = desk
        self._form = form

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Raises what is our own bug, once the client was told that it is one: it is to be logged."""
        headers, reply = Headers(scope=scope), Reply(send)
        body = Body(headers, receive)
        with Record(self._desk.observer, self._desk.clock) as record:
            try:
                with self._desk.places.one():
                    check_headers(headers)
                    document = document_of(await body.read(most_bytes=self._desk.limits.most_body_bytes))
                    await _while_connected(receive, self._answered(document, reply, record))
            except Gone:
                return
            except Full as full:
                await _tell(reply, record, self._too_many_streams(full), after=body)
            except Unavailable as lost:
                await _tell(reply, record, unavailable(lost), after=body)
            except Problem as problem:
                await _tell(reply, record, problem, after=body)
            except Exception:
                await _tell(reply, record, our_bug(), after=body)
                raise

    async def _answered(self, document: Mapping[str, Any], reply: Reply, record: Record) -> None:
        desk = self._desk
        asked = self._form.asked(document, desk.limits)
        card = desk.card(asked.model)
        record.model = card.id
        check_fits(asked, card)
        requests = await self._requests(asked, card)
        async with heard([desk.models.generate(card.id, request) for request in requests]) as hearing:
            answer = Answer(self._form, asked, await hearing.begun())
            try:
                if asked.stream:
                    await _send_parts(answer, asked.stream, hearing, reply=reply, record=record)
                else:
                    await _send_whole(answer, hearing, reply=reply, record=record)
            finally:
                record.counted(answer.usage())
        record.answered()

    def _too_many_streams(self, full: Full) -> Problem:
        most = self._desk.places.most
        sentence = f"{most} requests are in hand, and no more are taken at one time: ask again later"
        return crowded("too_many_streams", sentence, retry_after_s=full.retry_after_s)

    async def _requests(self, asked: Asked, card: ModelCard) -> list[CompletionRequest]:
        """One for each prompt."""
        prompts = self._desk.models.prompts(card.id)
        context, most = card.max_model_len, self._desk.limits.most_prompt_tokens
        requests = []
        for prompt in asked.prompts:
            ids = await self._desk.tokenizing.ids(prompts, prompt, most_tokens=min(context, most or context))
            tokens = fitting_tokens(ids, asked.max_tokens, card=card, most_prompt_tokens=most)
            requests.append(replace(asked.request, prompt=ids, max_tokens=tokens))
        return requests


async def _send_parts(answer: Answer, stream: Stream, hearing: Hearing, *, reply: Reply, record: Record) -> None:
    await reply.open_stream()
    async for prompt, said in hearing.words():
        if isinstance(said, Completion):
            answer.keep(prompt, said)
            continue
        for part in answer.parts(prompt, said, stream):
            record.heard_token()
            await reply.event(part)
    if stream.ends_with_usage:
        await reply.event(answer.last())
    await reply.end()


async def _send_whole(answer: Answer, hearing: Hearing, *, reply: Reply, record: Record) -> None:
    async for prompt, said in hearing.words():
        if isinstance(said, Completion):
            answer.keep(prompt, said)
    await reply.document(answer.whole(), headers={})


async def _tell(reply: Reply, record: Record, problem: Problem, *, after: Body) -> None:
    """A client that is not there any more need not be told."""
    record.failed(problem)
    try:
        await after.let_go()
        await reply.problem(problem)
    except Gone:
        return


async def _while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Do `work`, or leave it off where the client goes away; in either case nothing of it runs on.

    Raises:
        Gone: the client went away first.
        Whatever `work` raises.
    """
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_until_gone(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Gone
        working.result()
    finally:
        working.cancel()
        watching.cancel()
        await to_their_end((working, watching))


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
