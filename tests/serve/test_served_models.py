"""What becomes of a request between the HTTP side and a replica. Serve's handles are stand-ins that say or raise."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextvars import ContextVar
from copy import copy
from dataclasses import replace
from typing import Any

import pytest
from grpc import StatusCode
from grpc.aio import AioRpcError, Metadata
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError
from ray.serve._private.constants import RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from actors import readiness, served_models
from actors.crowding import Crowding
from actors.openai.seams import Message, Unavailable
from actors.presence import Presence
from actors.readiness import KEPT_S, Readiness
from actors.served_model import ModelFacts
from actors.served_models import ServedEntry, ServedModels, may_be_large
from kvcluster.services.completion import (
    Begun,
    Completion,
    CompletionRequest,
    Delta,
    Likelihood,
    Refused,
    Said,
    Telling,
)
from kvcluster.services.pacing import Pace
from kvcluster.testing.clock import ManualClock

HTTP_REQUEST: ContextVar[str] = ContextVar("HTTP_REQUEST")  # as Serve has one
CALLER = "SERVE_REPLICA::a#Gateway#1"
REQUEST = CompletionRequest((1, 2), tells=Telling.PARTS)
SAID: list[Said] = [
    Begun(2, 0),
    Delta(0, "a", 1),
    Delta(0, "b", 1, finish_reason="length"),
    Completion("ab", "length", 2, 2),
]
STEPS: list[Sequence[Said]] = [(), SAID[:2], SAID[2:]]


class Response:
    """A streaming call that is under way: says `steps`, and then raises, hangs or ends."""

    def __init__(self, steps: Sequence[Sequence[Said]], error: Exception | None, hangs: bool) -> None:
        self._steps = list(steps)
        self.error = error
        self.hangs = hangs
        self.is_cancelled = False
        self.at_the_first: Callable[[], object] = lambda: None  # what happens while the first step is on its way

    def __aiter__(self) -> Response:
        return self

    async def __anext__(self) -> Sequence[Said]:
        await asyncio.sleep(0)
        if self._steps:
            happens, self.at_the_first = self.at_the_first, lambda: None
            asyncio.get_running_loop().call_soon(happens)
            return self._steps.pop(0)
        if self.error:
            raise self.error
        if self.hangs:
            await asyncio.Event().wait()
        raise StopAsyncIteration

    def cancel(self) -> None:
        self.is_cancelled = True


class Handle:
    """A deployment's. What is asked of it is answered with one response, or with `refusal` by `ready`."""

    def __init__(
        self,
        steps: Sequence[Sequence[Said]] = STEPS,
        *,
        error: Exception | None = None,
        hangs: bool = False,
        refusal: Refused | None = None,
    ) -> None:
        self.response = Response(steps, error, hangs)
        self._refusal = refusal
        self.calls: list[tuple[str | None, bool]] = []  # for which HTTP request, and whether by Ray's objects
        self._by_objects = True
        self.generate = self
        self.looks: list[Look] = []
        self.ready = Asked(self._ready)

    def options(self, *, stream: bool, _by_reference: bool) -> Handle:
        assert stream
        other = copy(self)
        other._by_objects, other.generate = _by_reference, other
        return other

    def remote(self, request: CompletionRequest, caller: str) -> Response:
        assert (request.prompt, caller) == (REQUEST.prompt, CALLER)
        self.calls.append((HTTP_REQUEST.get(None), self._by_objects))
        return self.response

    def _ready(self) -> Look:
        self.looks.append(Look(self.response, self._refusal))
        return self.looks[-1]


class Look:
    """A question whether a replica is ready."""

    def __init__(self, response: Response, refusal: Refused | None) -> None:
        self._response = response
        self._refusal = refusal
        self.is_cancelled = False

    def __await__(self) -> Generator[Any, None, Refused | None]:
        return self._answer().__await__()

    async def _answer(self) -> Refused | None:
        if self._response.error:
            raise self._response.error
        if self._response.hangs:
            await asyncio.Event().wait()
        return self._refusal

    def cancel(self) -> None:
        self.is_cancelled = True


class Asked:
    def __init__(self, answer: Any) -> None:
        self.remote = answer


class NoPrompts:
    def encode(self, text: str) -> tuple[int, ...]:
        return ()

    def chat(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return ()


def served(*handles: Handle) -> ServedModels:
    return ServedModels([_entry(f"m{number}", handle) for number, handle in enumerate(handles)], caller=CALLER)


def _entry(name: str, handle: Handle) -> ServedEntry:
    return ServedEntry(name, 0, NoPrompts(), handle, Presence(name, handle, ModelFacts(8)), crowding())


def crowding() -> Crowding:
    """Of a model that nobody has found full."""
    clock = ManualClock()
    return Crowding(Pace(least_s=0.1, most_s=30.0, clock=clock), clock)


async def heard(models: ServedModels, request: CompletionRequest = REQUEST) -> list[Said]:
    return [said async for said in models.generate("m0", request)]


def lost(handle: Handle) -> Unavailable:
    with pytest.raises(Unavailable) as raised:
        asyncio.run(heard(served(handle)))
    assert raised.value.retry_after_s > 0
    return raised.value


def test_what_a_replica_says_in_lists_is_said_one_by_one() -> None:
    handle = Handle()
    assert asyncio.run(heard(served(handle))) == SAID
    assert not handle.response.is_cancelled


@pytest.mark.parametrize(
    "error",
    [
        ActorDiedError(),
        ActorUnavailableError("away", b"1" * 16),
        DeploymentUnavailableError("m0"),
        AioRpcError(StatusCode.CANCELLED, Metadata(), Metadata(), "the server ended"),
        RuntimeError(f"Unexpected error ({StatusCode.UNAVAILABLE}): Socket closed."),
    ],
)
def test_a_replica_that_is_lost_is_unavailable(error: Exception) -> None:
    handle = Handle(STEPS[:2], error=error)
    assert lost(handle).reason == "replica_lost"
    assert handle.response.is_cancelled


def test_where_no_replica_takes_the_request_in_time_its_client_hears_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_models, "TAKEN_S", 0.01)
    handle = Handle([], hangs=True)
    models = served(handle)
    for sentence in ("took the request", "takes requests"):  # the second waits for nobody
        with pytest.raises(Unavailable, match=sentence) as raised:
            asyncio.run(heard(models))
        assert (raised.value.reason, raised.value.retry_after_s > 0) == ("no_replica", True)
        monkeypatch.setattr(served_models, "TAKEN_S", 600.0)
    assert handle.response.is_cancelled


def test_a_request_that_was_taken_may_wait_for_as_long_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_models, "TAKEN_S", 0.01)
    handle = Handle([()], hangs=True)

    async def waits() -> None:
        await asyncio.wait_for(heard(served(handle)), 0.1)

    with pytest.raises(TimeoutError):
        asyncio.run(waits())


def test_a_full_queue_of_serve_s_own_is_a_refusal_with_429() -> None:
    handle = Handle([], error=BackPressureError(num_queued_requests=3, max_queued_requests=2))
    [refused] = asyncio.run(heard(served(handle)))
    assert isinstance(refused, Refused)
    assert (refused.status_code, refused.code) == (429, "server_busy")
    assert refused.retry_after_s


def test_each_prompt_of_an_http_request_is_a_request_of_its_own_to_serve() -> None:
    handle = Handle()
    HTTP_REQUEST.set("the number of an HTTP request")
    asyncio.run(heard(served(handle)))
    assert [number for number, _ in handle.calls] == [None]


def test_an_error_of_the_replica_s_own_is_not_taken_for_its_loss() -> None:
    bug = RayTaskError("generate", "a traceback", ValueError("a bug"))
    with pytest.raises(RayTaskError):
        asyncio.run(heard(served(Handle([()], error=bug))))


def test_whoever_stops_listening_cancels_the_request() -> None:
    handle = Handle()

    async def leaves() -> None:
        said: AsyncGenerator[Said, None] = served(handle).generate("m0", REQUEST)
        assert await anext(said) == SAID[0]
        await said.aclose()

    asyncio.run(leaves())
    assert handle.response.is_cancelled


def test_whoever_leaves_in_the_very_moment_in_which_a_replica_takes_the_request_cancels_it_too() -> None:
    handle = Handle([()], hangs=True)

    async def leaves() -> bool:
        listening = asyncio.create_task(heard(served(handle)))
        handle.response.at_the_first = listening.cancel
        await asyncio.wait({listening}, timeout=5)
        return listening.cancelled()

    assert asyncio.run(leaves())
    assert handle.response.is_cancelled


def test_a_cancel_that_nobody_here_asked_for_is_the_loss_of_the_replica() -> None:
    """Serve hands a replica's own CancelledError over as it is; whoever waits for an answer must not wait for ever."""
    handle = Handle(STEPS[:2], error=asyncio.CancelledError())
    assert lost(handle).reason == "replica_lost"


@pytest.mark.parametrize(
    "error",
    [
        AioRpcError(StatusCode.RESOURCE_EXHAUSTED, Metadata(), Metadata(), "larger than max"),
        AioRpcError(StatusCode.UNKNOWN, Metadata(), Metadata(), "cannot be pickled"),
        RuntimeError(f"Unexpected error ({StatusCode.UNKNOWN}): cannot be unpickled."),
        RuntimeError("of the replica's own"),
        TimeoutError("of the replica's own"),
    ],
)
def test_what_another_replica_would_fail_of_too_is_not_taken_for_a_loss(error: Exception) -> None:
    models = served(Handle(STEPS[:2], error=error))
    with pytest.raises(type(error)):
        asyncio.run(heard(models))
    assert models.are_there


def test_an_endpoint_that_ends_takes_nothing_new_and_finishes_what_is_under_way() -> None:
    models = served(Handle())

    async def ends() -> tuple[int, list[Said], int]:
        said = models.generate("m0", REQUEST)
        first = await anext(said)
        under_way = models.end()
        with pytest.raises(Unavailable, match="the endpoint is ending"):
            await heard(models)
        return under_way, [first, *[each async for each in said]], models.end()

    assert asyncio.run(ends()) == (1, SAID, 0)


AWAY = Refused(503, "device_restarting", "it is away", retry_after_s=2.0)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (Handle(refusal=AWAY), "device_restarting"),
        (Handle(error=ActorDiedError()), "replica_lost"),
        (Handle(error=AioRpcError(StatusCode.CANCELLED, Metadata(), Metadata(), "it ended")), "replica_lost"),
        (Handle(error=RuntimeError(f"Unexpected error ({StatusCode.CANCELLED}): .")), "replica_lost"),
        (Handle(error=asyncio.CancelledError()), "replica_lost"),
    ],
)
def test_it_is_ready_only_when_each_model_is(bad: Handle, reason: str) -> None:
    asyncio.run(served(Handle(), Handle()).ready())
    with pytest.raises(Unavailable) as raised:
        asyncio.run(served(Handle(), bad).ready())
    assert raised.value.reason == reason


def test_more_requests_than_may_wait_say_nothing_against_those_who_compute_them() -> None:
    full = Handle(error=BackPressureError(num_queued_requests=3, max_queued_requests=2))
    asyncio.run(served(full).ready())


def test_a_question_that_nobody_answers_in_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "READY_S", 0.0)
    handle = Handle(hangs=True)
    with pytest.raises(Unavailable, match="no replica of m0 answers"):
        asyncio.run(served(handle).ready())
    assert [look.is_cancelled for look in handle.looks] == [True]


def test_however_many_ask_whether_it_is_ready_a_replica_is_asked_once_a_second() -> None:
    clock, handle = ManualClock(), Handle(refusal=AWAY)
    ready = Readiness({"m0": handle}, clock=clock)

    async def looks() -> list[int]:
        counts = []
        for _ in range(2):
            for _ in range(2):
                told = await asyncio.gather(*(ready.check() for _ in range(8)), return_exceptions=True)
                assert [str(each) for each in told] == [AWAY.message] * 8
            counts.append(len(handle.looks))
            clock.advance(KEPT_S)
        return counts

    assert asyncio.run(looks()) == [1, 2]


def test_whoever_is_refused_by_the_gateway_hears_how_much_memory_was_free_for_the_last_that_a_replica_refused() -> None:
    busy = Refused(429, "server_busy", "busy", 1.0, need_bytes=4096, free_bytes=512)
    models = served(Handle([(), SAID[:1], (), [busy]]))  # to two calls, one after the other

    async def asks() -> list[Said]:
        inside = models.generate("m0", REQUEST)
        assert await anext(inside) == SAID[0]
        assert await heard(models) == [busy]
        refused = await heard(models)
        await inside.aclose()
        return refused

    [refused] = asyncio.run(asks())
    assert isinstance(refused, Refused)
    assert (refused.code, refused.need_bytes, refused.free_bytes) == ("server_busy", None, 512)


@pytest.mark.parametrize(("logprobs", "n"), [(None, 1), (0, 1), (20, 1), (20, 8)])
def test_what_goes_by_grpc_fits_into_one_of_its_messages(logprobs: int | None, n: int) -> None:
    request = CompletionRequest((70_000,) * 1_000, n=n, logprobs=logprobs, max_tokens=1)
    while not may_be_large(longer := replace(request, max_tokens=request.max_tokens + 16)):
        request = longer
    likely = Likelihood("é" * 8, -0.123456789, tuple((f"{other:016}", -float(other)) for other in range(logprobs or 0)))
    told = () if logprobs is None else (likely,) * request.max_tokens
    apart = tuple(pickle.loads(pickle.dumps(one)) for one in told)  # else each is pickled once
    whole = Completion("é" * 8 * request.max_tokens, "length", 1_000, request.max_tokens, logprobs=apart)
    parts = [Delta(0, "é" * 4, 1, apart[place : place + 1]) for place in range(request.max_tokens)]
    assert n * len(pickle.dumps([*parts, whole])) < RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH
    assert len(pickle.dumps(request)) < RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH


@pytest.mark.parametrize(
    ("more", "is_large"),
    [
        ({"max_tokens": 100_000}, True),
        ({"max_tokens": 1_000, "logprobs": 20}, True),
        ({"max_tokens": 1_000}, False),
    ],
)
def test_what_may_be_too_much_for_grpc_goes_by_objects(more: dict[str, Any], is_large: bool) -> None:
    handle = Handle()
    asyncio.run(heard(served(handle), replace(REQUEST, **more)))
    assert [by_objects for _, by_objects in handle.calls] == [is_large]


def test_a_prompt_of_very_many_tokens_may_be_large() -> None:
    assert may_be_large(replace(REQUEST, prompt=(1,) * 200_000))
