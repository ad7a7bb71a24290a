"""That streams arrive as they are made, and what HTTP costs a request.

The endpoint runs in this process's own Ray, so that the same replica can be asked by its handle, and a request actor
at the same device with nothing of Serve between. First, streams of 128 tokens one after the other: time to first text
over total, and the longest gap. Then, in turn, the same request over HTTP, by the handle and by the actor, each
TOKENS long, answered as a whole, prompts as text: the differences of each round, in milliseconds a request.

    python -m benchmarks.serving.streaming [--rounds 150]     about 1 minute
    python -m benchmarks.serving.streaming --quick            about 30 s

It must show: first text long before the whole; at most 10 ms a request, at the median, of HTTP over the actor.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.serve._private.constants import SERVE_CONTROLLER_NAME

from actors.owners import NAMESPACE
from actors.request import RequestActor
from actors.serve_app import build
from actors.spec import WorkerSpec
from benchmarks.harness import Ratio, report
from benchmarks.serving.bodies import Random
from benchmarks.serving.client import Answer, Ending, Target, ask, completion
from benchmarks.serving.endpoint import Beside, Endpoint, free_port
from benchmarks.serving.figures import milliseconds
from kvcluster.config import settings_of
from kvcluster.services.completion import Completion, CompletionRequest, Telling
from kvcluster.serving_config import ServingSettings
from kvcluster.testing.models import make_model

MODEL = "small"
STREAM_TOKENS, TOKENS, PROMPT_WORDS = 128, 16, 8
WARM_UP = 5
WORDS = ("the", "a", "device", "of", "memory", "and", "request", "token", "is", "to", "page", "for", "stream")

Arm = Callable[[str], Awaitable[object]]


class ActorPath:
    """A request actor, fed as a job feeds its own."""

    def __init__(self, folder: Path, args: dict[str, Any]) -> None:
        settings = settings_of(ServingSettings, args).of(MODEL)
        node_id = ray.get_runtime_context().get_node_id()
        spec = WorkerSpec(str(folder), settings, settings.device_names[0], node_id, threads=1)
        self._actor = ray.remote(RequestActor).options(max_concurrency=4, num_cpus=1, namespace=NAMESPACE).remote(spec)
        ray.get(self._actor.open.remote())
        self._key = 0

    async def answer(self, prompt: str) -> None:
        self._key += 1
        self._actor.submit.remote([(self._key, _request(prompt))])
        while not (collected := await self._actor.collect.remote(5.0)).outcomes:
            pass
        assert isinstance(collected.outcomes[0][1], Completion), collected


class HandlePath:
    """The endpoint's own replica, without HTTP and without the gateway."""

    def __init__(self) -> None:
        handle = serve.get_deployment_handle(MODEL, "kvcluster")
        self._handle = handle.options(stream=True, _by_reference=False)  # as the gateway asks it

    async def answer(self, prompt: str) -> None:
        last = None
        async for said in self._handle.generate.remote(_request(prompt, streams=True), SERVE_CONTROLLER_NAME):
            last = said[-1] if said else last
        assert isinstance(last, Completion), last


class HttpPath:
    """As a client without streaming."""

    def __init__(self, target: Target, *, stream: bool) -> None:
        self._target, self._stream = target, stream

    async def answer(self, prompt: str) -> None:
        body = completion(MODEL, prompt, max_tokens=TOKENS, stream=self._stream)
        if not self._stream:
            del body["stream_options"]
        got = await ask(self._target, body)
        assert got.status == 200, got
        assert not self._stream or got.ending is Ending.DONE, got


@contextmanager
def served(folder: Path) -> Iterator[tuple[Target, dict[str, Any]]]:
    """The endpoint, in a Ray of this process's own. Its args beside its address."""
    port = free_port()
    args = {
        "models": {MODEL: str(folder)},
        "devices": f"host:{port}",
        "dtype": "float32",
        "device_memory": "64MiB",
        "threads": 1,
    }
    ray.init(
        "local", num_cpus=4, include_dashboard=False, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR"
    )
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(build(args), name="kvcluster", route_prefix="/")
        yield Target("127.0.0.1", port, MODEL), args
    finally:
        serve.shutdown()
        ray.shutdown()


async def streams(target: Target, count: int) -> list[Answer]:
    """One after the other, no two prompts alike."""
    bodies = Random(MODEL, prompt_tokens=24, max_tokens=STREAM_TOKENS)
    for _ in range(WARM_UP):
        await ask(target, bodies())
    return [await ask(target, bodies()) for _ in range(count)]


async def differences(arms: dict[str, Arm], rounds: int) -> dict[str, list[float]]:
    """Seconds of each arm, round by round; the order turns."""
    took: dict[str, list[float]] = {name: [] for name in arms}
    chance, names = random.Random(1), list(arms)
    for number in range(-WARM_UP, rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            prompt = " ".join(chance.choices(WORDS, k=PROMPT_WORDS))
            began = time.perf_counter()
            await arms[name](prompt)
            if number >= 0:
                took[name].append(time.perf_counter() - began)
    return took


def main() -> None:
    chosen = _chosen()
    rounds, count = (40, 8) if chosen.quick else (chosen.rounds, 30)
    with tempfile.TemporaryDirectory() as folder:
        path = make_model(Path(folder), "llama")
        with served(path) as (target, args):
            beside = Beside([Endpoint("", (MODEL,), os.getpid())])
            actor = ActorPath(path, args)
            answers = asyncio.run(streams(target, count))
            took = asyncio.run(differences(_arms(target, actor), rounds))
            told = beside.said()
    ratios = {"first text / whole stream": _first_share(answers)}
    report("serving streaming", ratios, beside=told, **_figures(answers, took))


def _chosen() -> Any:
    from benchmarks.serving.endpoint import arguments

    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=150)
    chosen = parser.parse_args()
    if chosen.url:
        parser.error("this asks the endpoint's own actors, and takes no --url")
    return chosen


def _arms(target: Target, actor: ActorPath) -> dict[str, Arm]:
    return {
        "http": HttpPath(target, stream=False).answer,
        "http, streamed": HttpPath(target, stream=True).answer,
        "handle": HandlePath().answer,
        "actor": actor.answer,
    }


def _request(prompt: str, *, streams: bool = False) -> CompletionRequest:
    return CompletionRequest(
        prompt, max_tokens=TOKENS, temperature=0.0, ignore_eos=True, tells=Telling.PARTS if streams else Telling.WHOLE
    )


def _first_share(answers: Sequence[Answer]) -> Ratio:
    shares = [answer.first_token_s / answer.total_s for answer in answers]
    return Ratio(statistics.median(shares), min(shares), max(shares))


def _figures(answers: Sequence[Answer], took: dict[str, list[float]]) -> dict[str, Any]:
    gaps = [
        late - early
        for answer in answers
        for early, late in zip(answer.arrivals_s, answer.arrivals_s[1:], strict=False)
    ]
    over = {
        f"{name} - {below}": milliseconds([a - b for a, b in zip(took[name], took[below], strict=True)])
        for name, below in (("http", "actor"), ("http, streamed", "actor"), ("handle", "actor"), ("http", "handle"))
    }
    return {
        "streams": len(answers),
        "events_a_stream": statistics.median(len(answer.arrivals_s) for answer in answers),
        "first_text_ms": milliseconds([answer.first_token_s for answer in answers]),
        "whole_ms": milliseconds([answer.total_s for answer in answers]),
        "gap_ms": milliseconds(gaps),
        "request_ms": {name: milliseconds(seconds) for name, seconds in took.items()},
        "difference_ms": over,
    }


if __name__ == "__main__":
    main()
