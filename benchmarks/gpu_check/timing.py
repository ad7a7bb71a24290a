"""Microseconds of calls: each one timed by itself, told as median and 99th percentile."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class Stopwatch:
    """Times by name."""

    def __init__(self) -> None:
        self.times_us: defaultdict[str, list[float]] = defaultdict(list)

    @contextmanager
    def timed(self, name: str, *, parts: int = 1) -> Iterator[None]:
        """The block's time, a part of it where it does `parts` alike things. One that fails is not counted."""
        start = time.perf_counter()
        yield
        self.times_us[name].append((time.perf_counter() - start) * 1e6 / parts)

    def told(self) -> dict[str, dict[str, float]]:
        return {name: told(times_us) for name, times_us in self.times_us.items()}


def told(times_us: Sequence[float]) -> dict[str, float]:
    """Median and 99th percentile (of fewer than 100 the largest)."""
    ordered = sorted(times_us)
    worst = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return {"median_us": round(statistics.median(ordered), 2), "p99_us": round(worst, 2)}
