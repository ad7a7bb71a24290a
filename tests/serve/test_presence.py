"""A gateway answers before its models are there, and again when they are. Serve's handles are stand-ins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from grpc import StatusCode
from grpc.aio import AioRpcError, Metadata
from ray.exceptions import ActorDiedError, RayTaskError
from ray.serve.exceptions import DeploymentUnavailableError

from actors import presence
from actors.openai.seams import ModelCard, Unavailable
from actors.presence import NOBODY, STARTING, Presence
from actors.served_model import ModelFacts
from actors.served_models import ServedEntry, ServedModels
from kvcluster.services.completion import CompletionRequest, Telling
from tests.serve.test_served_models import NoPrompts, crowding

FACTS = ModelFacts(8)


class Asked:
    """A call for facts."""

    def __init__(self, answer: asyncio.Future[ModelFacts]) -> None:
        self.answer = answer
        self.is_cancelled = False

    def __await__(self) -> Generator[Any, None, ModelFacts]:
        return self.answer.__await__()

    def cancel(self) -> None:
        self.is_cancelled = True


class Handle:
    """A deployment's; `calls` are those for facts, which the test answers."""

    def __init__(self) -> None:
        self.calls: list[Asked] = []
        self.facts = self

    def options(self, *, stream: bool, _by_reference: bool) -> Handle:
        assert stream
        return self

    def remote(self) -> Asked:
        self.calls.append(Asked(asyncio.get_running_loop().create_future()))
        return self.calls[-1]

    async def call(self, number: int) -> Asked:
        """The one of that number, from 1, once it comes."""
        async with asyncio.timeout(10):
            while len(self.calls) < number:
                await asyncio.sleep(0)
        return self.calls[number - 1]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "PAUSE_S", 0.0)


def served(handle: Handle) -> ServedModels:
    entry = ServedEntry("m", 0, NoPrompts(), handle, Presence("m", handle), crowding())
    return ServedModels([entry], caller="nobody")


@asynccontextmanager
async def watched(models: ServedModels) -> AsyncIterator[None]:
    watching = asyncio.create_task(models.watch())
    yield
    watching.cancel()
    await asyncio.wait({watching})
    assert watching.cancelled()


async def until_there(models: ServedModels) -> None:
    async with asyncio.timeout(10):
        while not models.are_there:
            await asyncio.sleep(0)


def test_what_is_asked_of_a_model_that_nobody_has_met_is_unavailable_at_once() -> None:
    models = served(Handle())

    async def asks() -> list[str]:
        reasons = []
        for ask in (models.ready, lambda: anext(models.generate("m", CompletionRequest((1,), tells=Telling.PARTS)))):
            with pytest.raises(Unavailable) as raised:
                await ask()
            reasons.append(raised.value.reason)
        return reasons

    assert asyncio.run(asks()) == [STARTING] * 2
    with pytest.raises(Unavailable, match="no replica of m is ready yet"):
        models.check_known("m")
    models.check_known("another")
    assert (models.cards(), models.are_there) == ([], False)


@pytest.mark.parametrize(
    "error",
    [
        ActorDiedError(),
        DeploymentUnavailableError("m"),
        AioRpcError(StatusCode.CANCELLED, Metadata(), Metadata(), "the server ended"),
        RuntimeError(f"Unexpected error ({StatusCode.CANCELLED}): ."),
        asyncio.CancelledError(),  # the replica's own
        RayTaskError("facts", "a traceback", ValueError("a bug")),
        ValueError("a bug"),
    ],
)
def test_a_model_is_asked_for_its_facts_until_it_has_told_them_however_the_question_fails(error: Exception) -> None:
    models = served(handle := Handle())

    async def starts() -> None:
        async with watched(models):
            (await handle.call(1)).answer.set_exception(error)
            (await handle.call(2)).answer.set_result(FACTS)
            await until_there(models)

    asyncio.run(starts())
    assert models.cards() == [ModelCard("m", 0, FACTS.most_tokens)]
    models.check_known("m")


def test_a_replica_that_does_not_answer_is_asked_again_and_the_first_call_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(presence, "ASK_S", 0.0)
    models = served(handle := Handle())

    async def hangs() -> bool:
        async with watched(models):
            await handle.call(3)
            return handle.calls[0].is_cancelled

    assert asyncio.run(hangs())
    assert not models.are_there


def test_a_model_whose_replicas_took_no_request_is_there_again_as_soon_as_one_answers() -> None:
    handle = Handle()
    model = Presence("m", handle, FACTS)

    async def comes_back() -> ModelFacts | None:
        watching = asyncio.create_task(model.watch())
        (await handle.call(1)).answer.set_result(FACTS)
        await asyncio.sleep(0)
        model.missed()
        with pytest.raises(Unavailable) as raised:
            model.check()
        assert raised.value.reason == NOBODY
        assert model.facts == FACTS
        (await handle.call(2)).answer.set_result(ModelFacts(5))
        async with asyncio.timeout(10):
            while model.facts == FACTS:
                await asyncio.sleep(0)
        watching.cancel()
        model.check()
        return model.facts

    assert asyncio.run(comes_back()) == ModelFacts(5)
