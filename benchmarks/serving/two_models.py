"""Two models on one device of fixed memory, beside the same memory split in halves.

One endpoint serves both models on one device; beside it each has an endpoint and a device of half the size of its
own. Bursts go to one model and then to the other, as many streams as the whole memory holds and the half does not. A
round is one burst at each arm; its ratio is that of the goodputs. All processes live all the time, and only those of
one burst have work.

    python -m benchmarks.serving.two_models [--rounds 6]     about 3 minutes
    python -m benchmarks.serving.two_models --quick          about 1 minute

It must show: a ratio above 1.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from benchmarks.harness import ratio, report
from benchmarks.serving.bodies import Random
from benchmarks.serving.client import Target
from benchmarks.serving.endpoint import Beside, Endpoint, Wanted, arguments, started
from benchmarks.serving.figures import summary
from benchmarks.serving.loads import Load, closed_loop

MODELS = {"one": "llama_31m", "two": "llama_31m"}
PROMPT_TOKENS, TOKENS = 96, 64  # mostly prompt: what a stream needs, it needs at once
STREAMS = 4
WHOLE, HALF = "6MiB", "3MiB"  # a stream's 160 tokens take 1.25 MiB
SETTINGS: dict[str, Any] = {"fallback": "wait", "prefix_cache": "off", "threads": 2, "max_num_seqs": STREAMS}


@dataclass(frozen=True, slots=True)
class Burst:
    """One model's burst at both arms."""

    model: str
    shared: Load
    halves: Load


async def burst(model: str, arms: dict[str, Target], number: int, *, seconds: float) -> Burst:
    """At each arm in turn, the first of which changes with the round. Raises RuntimeError if one answers nothing."""
    loads: dict[str, Load] = {}
    names = ["shared", "halves"] if number % 4 < 2 else ["halves", "shared"]
    for name in names:
        bodies = Random(model, prompt_tokens=PROMPT_TOKENS, max_tokens=TOKENS, seed=time.perf_counter_ns())
        loads[name] = await closed_loop(arms[name], bodies, streams=STREAMS, seconds=seconds)
        if not loads[name].whole:
            raise RuntimeError(f"nothing came whole of {model}, {name}: {summary(loads[name])}")
        print(f"round {number + 1}, {model}, {name}: {loads[name].goodput:.0f} tokens/s", file=sys.stderr)
    return Burst(model, loads["shared"], loads["halves"])


async def measure(shared: Endpoint, halves: dict[str, Endpoint], rounds: int, *, seconds: float) -> list[Burst]:
    models = list(MODELS)
    arms = {name: {"shared": shared.target(name), "halves": halves[name].target()} for name in models}
    for name in models:
        await burst(name, arms[name], 0, seconds=3.0)
    picked = [models[number % len(models)] for number in range(rounds)]
    return [await burst(name, arms[name], number, seconds=seconds) for number, name in enumerate(picked)]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    chosen = parser.parse_args()
    if chosen.url:
        parser.error("this starts endpoints of its own, and takes no --url")
    rounds, seconds = (4, 6.0) if chosen.quick else (chosen.rounds, 10.0)
    with ExitStack() as stack:
        shared = stack.enter_context(started(Wanted(MODELS, settings={**SETTINGS, "device_memory": WHOLE})))
        half = {**SETTINGS, "device_memory": HALF}
        halves = {name: stack.enter_context(started(Wanted({name: MODELS[name]}, settings=half))) for name in MODELS}
        beside = Beside([shared, *halves.values()])
        bursts = asyncio.run(measure(shared, halves, rounds, seconds=seconds))
        told = beside.said()
    report("serving two models", _ratios(bursts), beside=told, bursts=[_said(one) for one in bursts])


def _ratios(bursts: Sequence[Burst]) -> dict[str, Any]:
    shared, halves = [one.shared.goodput for one in bursts], [one.halves.goodput for one in bursts]
    return {"goodput: one device / halves": ratio(shared, halves)}


def _said(one: Burst) -> dict[str, Any]:
    return {"model": one.model, "shared": summary(one.shared), "halves": summary(one.halves)}


if __name__ == "__main__":
    main()
