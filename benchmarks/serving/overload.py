"""Four times what the endpoint can do: what still comes whole, what the others are told, and whether memory stays.

The peak is looked for with a closed loop at rising concurrency. A round is then, one after the other: one stream at a
time (unloaded), the peak's concurrency, clients that arrive at `--times` the peak's rate, and the peak again. The
first round's overload lasts `--seconds`, the others' SHORT_S. Goodput is tokens a second of answers that came whole;
its ratio is to the mean of the peaks on both sides. Of the clients four in five obey Retry-After, the others come back
every second, five times. Time to first token is that of the try that was admitted.

    python -m benchmarks.serving.overload [--seconds 120] [--rounds 3] [--times 4]     about 5 minutes
    python -m benchmarks.serving.overload --quick                                      about 1 minute

It must show: goodput / peak at least 0.9; every refusal a 429, whose Retry-After grows; no fault; memory flat.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from dataclasses import dataclass
from typing import Any

from benchmarks.harness import ratio, report
from benchmarks.serving.bodies import Random
from benchmarks.serving.client import Target
from benchmarks.serving.endpoint import Beside, Endpoint, Wanted, arguments, endpoint
from benchmarks.serving.figures import first_tokens_s, percentile, retry_after, summary
from benchmarks.serving.loads import Arrivals, Load, closed_loop, open_loop
from benchmarks.serving.processes import growth

CONCURRENCIES = (1, 2, 4, 8, 16, 32)
ENOUGH = 1.03  # more streams that give less than this factor more are not looked for
PROMPT_TOKENS, TOKENS = 32, 64
SHORT_S = 20.0
CALM_S = 12.0
CENSUS_S = 10.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How long each part lasts."""

    probe_s: float
    calm_s: float
    overloads_s: tuple[float, ...]
    times: float

    @classmethod
    def of(cls, chosen: argparse.Namespace) -> Plan:
        if chosen.quick:
            return cls(4.0, 5.0, (SHORT_S,), chosen.times)
        return cls(6.0, CALM_S, (chosen.seconds, *[SHORT_S] * (chosen.rounds - 1)), chosen.times)


@dataclass(frozen=True, slots=True)
class Round:
    """The loads of one round, in their order."""

    unloaded: Load
    peak_before: Load
    overload: Load
    peak_after: Load

    @property
    def peak(self) -> float:
        return (self.peak_before.goodput + self.peak_after.goodput) / 2


class Memory:
    """The serving processes' sums, from time to time."""

    def __init__(self, served: Endpoint) -> None:
        self._served = served
        self._began_s = time.perf_counter()
        self.seen: list[dict[str, float]] = []

    def look(self) -> None:
        if now := self._served.census():
            self.seen.append({"at_s": round(time.perf_counter() - self._began_s, 1), **now.summary()})

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(CENSUS_S)


async def find_peak(target: Target, plan: Plan) -> tuple[int, dict[int, float]]:
    """The concurrency beyond which nothing more comes, and the goodput of each that was tried."""
    tried: dict[int, float] = {}
    best = CONCURRENCIES[0]
    for streams in CONCURRENCIES:
        tried[streams] = (await closed_loop(target, _bodies(target), streams=streams, seconds=plan.probe_s)).goodput
        print(f"{streams} streams: {tried[streams]:.0f} tokens/s", file=sys.stderr)
        if tried[streams] > ENOUGH * tried[best] or streams == best:
            best = streams
        elif streams > 2 * best:
            break
    return best, tried


async def run_round(target: Target, streams: int, plan: Plan, *, overload_s: float) -> Round:
    unloaded = await closed_loop(target, _bodies(target), streams=1, seconds=plan.calm_s)
    before = await closed_loop(target, _bodies(target), streams=streams, seconds=plan.calm_s)
    arrivals = Arrivals(plan.times * before.goodput / TOKENS, overload_s)
    print(f"peak {before.goodput:.0f} tokens/s; {arrivals.rate:.1f} clients/s for {overload_s:.0f} s", file=sys.stderr)
    over = await open_loop(target, _bodies(target), arrivals)
    after = await closed_loop(target, _bodies(target), streams=streams, seconds=plan.calm_s)
    return Round(unloaded, before, over, after)


async def measure(served: Endpoint, plan: Plan) -> dict[str, Any]:
    """All rounds, and the memory beside them."""
    target, memory = served.target(), Memory(served)
    streams, tried = await find_peak(target, plan)
    before = served.census()
    watching = asyncio.create_task(memory.watch())
    rounds = [await run_round(target, streams, plan, overload_s=seconds) for seconds in plan.overloads_s]
    watching.cancel()
    memory.look()
    after = served.census()
    return {
        "rounds": rounds,
        "peak_streams": streams,
        "peaks_tokens_per_s": tried,
        "memory": memory.seen,
        "growth": growth(before, after) if before and after else {},
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--times", type=float, default=4.0)
    chosen = parser.parse_args()
    with endpoint(chosen, Wanted({"small": "llama_31m"})) as served:
        beside = Beside([served])
        measured = asyncio.run(measure(served, Plan.of(chosen)))
        told = beside.said()
    rounds: list[Round] = measured.pop("rounds")
    report("serving overload", _ratios(rounds), beside=told, rounds=[_said(one) for one in rounds], **measured)


def _bodies(target: Target) -> Random:
    return Random(target.model, prompt_tokens=PROMPT_TOKENS, max_tokens=TOKENS, seed=time.perf_counter_ns())


def _ratios(rounds: list[Round]) -> dict[str, Any]:
    over = [one.overload.goodput for one in rounds]
    p95 = {
        name: [percentile(first_tokens_s(getattr(one, name).answers), 0.95) for one in rounds]
        for name in ("overload", "unloaded", "peak_before")
    }
    return {
        "goodput: overload / peak": ratio(over, [one.peak for one in rounds]),
        "p95 to first token: admitted / unloaded": ratio(p95["overload"], p95["unloaded"]),
        "p95 to first token: admitted / at the peak": ratio(p95["overload"], p95["peak_before"]),
    }


def _said(one: Round) -> dict[str, Any]:
    names = ("unloaded", "peak_before", "overload", "peak_after")
    return {**{name: summary(getattr(one, name)) for name in names}, "retry_after": retry_after(one.overload)}


if __name__ == "__main__":
    main()
