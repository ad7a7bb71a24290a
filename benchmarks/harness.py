"""How every benchmark here measures: arms in turn in one process, ratios within a round, medians over rounds.

A time on a shared machine means nothing; the ratio of two arms that ran one after the other does. Each round runs
every arm once, in an order that turns with the round; a ratio is that of one round, and its median, lowest and
highest are reported. CPU seconds stand beside wall seconds. The last line that a benchmark prints is one JSON object.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

PACKAGES = ("torch", "transformers", "ray", "msgpack", "pydantic")


@dataclass(frozen=True, slots=True)
class Timing:
    """One run of one arm."""

    wall_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Ratio:
    """Over the rounds of one run."""

    median: float
    lowest: float
    highest: float


def timed(work: Callable[[], object]) -> Timing:
    """Seconds that one call of `work` takes, and CPU seconds of this process."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Timing(time.perf_counter() - wall, time.process_time() - cpu)


def interleaved(arms: Mapping[str, Callable[[], object]], *, rounds: int) -> dict[str, list[Timing]]:
    """Every arm once a round. The caller has warmed them up."""
    timings: dict[str, list[Timing]] = {name: [] for name in arms}
    names = list(arms)
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            timings[name].append(timed(arms[name]))
            print(f"round {number + 1} of {rounds}, {name}: {timings[name][-1].wall_s:.1f} s", file=sys.stderr)
    return timings


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """The ratios of each round."""
    ratios = [a / b for a, b in zip(numerators, denominators, strict=True)]
    return Ratio(statistics.median(ratios), min(ratios), max(ratios))


def speed_ratios(timings: Mapping[str, Sequence[Timing]], ours: str) -> dict[str, Ratio]:
    """How many times as fast as each other arm `ours` was, by wall time."""
    mine = [timing.wall_s for timing in timings[ours]]
    return {
        f"{ours} / {name}": ratio([timing.wall_s for timing in others], mine)
        for name, others in timings.items()
        if name != ours
    }


def report(name: str, ratios: Mapping[str, Ratio], **more: Any) -> None:
    """Print the result as the benchmark's last line."""
    for what, one in ratios.items():
        print(f"{what}: {one.median:.3f} ({one.lowest:.3f} to {one.highest:.3f})")
    document = {
        "name": name,
        "command": " ".join(["python", *sys.argv]),
        "machine": {"processor": _processor(), "cores": os.cpu_count(), "system": platform.platform()},
        "versions": {"python": platform.python_version(), **{package: version(package) for package in PACKAGES}},
        "ratios": {what: asdict(one) for what, one in ratios.items()},
        **more,
    }
    print(json.dumps(document))


def seconds(timings: Mapping[str, Sequence[Timing]]) -> dict[str, dict[str, float]]:
    """Median wall and CPU seconds of each arm, for the reader; only ratios are compared."""
    return {
        name: {
            "wall_s": statistics.median(timing.wall_s for timing in runs),
            "cpu_s": statistics.median(timing.cpu_s for timing in runs),
        }
        for name, runs in timings.items()
    }


def _processor() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return names[0] if names else platform.machine()
