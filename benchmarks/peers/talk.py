"""What a worker and the benchmark say to each other: one JSON object a line, asked over stdin, answered over stdout.

A worker holds one engine with one model, is asked one thing at a time, and times it itself, so that no pipe is in the
figures. It runs in the environment of its peer: only the standard library may be imported here, and no worker imports
another's. What libraries print goes to stderr. CPU seconds are those of the worker and all its descendants, for an
engine may compute in a process of its own; of those the kernel counts hundredths.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from benchmarks.peers.loads import Arrival, Served
from benchmarks.serving.processes import GONE, TICKS, descendants


@dataclass(frozen=True, slots=True)
class Order:
    """A worker's first line: the model, and what its engine may have. `engine` is the worker's own word for how."""

    folder: str
    dtype: str
    engine: str
    kv_memory_bytes: int
    most_sequences: int
    most_tokens: int  # of one request
    kv_tokens: int | None = None  # how many kv_memory_bytes hold, where the engine is to have no more than that


Texts = Sequence[Sequence[int] | str]


class Engine(Protocol):
    """What a worker has. `generate` is greedy, ignores end tokens, and gives the tokens (or text) of each prompt."""

    @property
    def versions(self) -> Mapping[str, str]: ...

    @property
    def notes(self) -> Mapping[str, Any]: ...

    def generate(self, prompts: Sequence[tuple[int, ...]], max_tokens: int) -> Texts: ...

    def serve(self, arrivals: Sequence[Arrival], limit_s: float) -> list[Served]: ...

    def rest(self) -> None:
        """After an answer: what it left to be done is done."""


def work(opened: Callable[[Order], Engine]) -> None:
    """Be a worker, until told to quit or the benchmark is gone."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        engine: Engine | None = None
        for line in sys.stdin:
            asked = json.loads(line)
            if asked["what"] == "quit":
                break
            try:
                engine = engine or opened(Order(**asked["order"]))
                answer = _ANSWERS[asked["what"]](engine, asked)
            except Exception as error:  # noqa: BLE001  a peer's own; the benchmark says so in its result
                answer = {"error": f"{type(error).__name__}: {error}"[:500]}
            print(json.dumps(answer), file=answers, flush=True)
    for pid in _children():  # engines leave processes, and threads, that do not end by themselves
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    os._exit(0)


def _load(engine: Engine, asked: Mapping[str, Any]) -> dict[str, Any]:
    return {"versions": dict(engine.versions), "notes": dict(engine.notes)}


def _generate(engine: Engine, asked: Mapping[str, Any]) -> dict[str, Any]:
    prompts = [tuple(prompt) for prompt in asked["prompts"]]
    watch = _Watch()
    texts = engine.generate(prompts, asked["max_tokens"])
    taken = watch.read()
    engine.rest()
    digests = list(map(digest, _as_text(texts, asked["order"]["folder"])))
    return {**taken, "tokens": asked["max_tokens"] * len(texts), "digests": digests}


def _arrivals(engine: Engine, asked: Mapping[str, Any]) -> dict[str, Any]:
    arrivals = [Arrival(one["at_s"], tuple(one["prompt"]), one["max_tokens"]) for one in asked["arrivals"]]
    watch = _Watch()
    served = engine.serve(arrivals, asked["limit_s"])
    taken = watch.read()
    engine.rest()
    return {**taken, "served": [asdict(one) for one in served]}


_ANSWERS = {"load": _load, "generate": _generate, "arrivals": _arrivals}


def digest(text: str) -> str:
    """Short, and equal for equal texts."""
    return hashlib.sha256(text.encode("utf-8", errors="replace")).hexdigest()[:12]


def _as_text(texts: Texts, folder: str) -> Iterator[str]:
    """Token ids as the model's tokenizer decodes them; texts as they are."""
    for text in texts:
        if isinstance(text, str):
            yield text
        else:
            from tokenizers import Tokenizer  # where ids are given it is there

            yield Tokenizer.from_file(f"{folder}/tokenizer.json").decode(list(text), skip_special_tokens=True)


class _Watch:
    """Wall and CPU seconds since it was made."""

    def __init__(self) -> None:
        self._cpu, self._wall = _cpu_s(), time.perf_counter()

    def read(self) -> dict[str, float]:
        wall = time.perf_counter() - self._wall
        return {"wall_s": wall, "cpu_s": _cpu_s() - self._cpu}


def _cpu_s() -> float:
    return time.process_time() + sum(map(_cpu_s_of, _children()))


def _children() -> list[int]:
    """All processes that came of this one, while their parents live."""
    return [pid for pid in descendants(os.getpid()) if pid != os.getpid()]


def _cpu_s_of(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            words = file.read().rpartition(")")[2].split()
    except GONE:
        return 0.0
    return (int(words[11]) + int(words[12])) / TICKS
