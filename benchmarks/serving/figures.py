"""What a load's answers come to: counts by ending and status, percentiles, Retry-After over time."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.serving.client import Answer, Ending
from benchmarks.serving.loads import Load

BIN_S = 5.0


def percentile(values: Iterable[float], share: float) -> float:
    """The value that so large a share lies at or below; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def first_tokens_s(answers: Iterable[Answer]) -> list[float]:
    """Of each answer that came whole: seconds from the try that was admitted to its first text."""
    return [answer.first_token_s for answer in answers if answer.ending is Ending.DONE]


def endings(answers: Iterable[Answer]) -> dict[str, int]:
    """How often each status with each ending."""
    return dict(sorted(Counter(f"{answer.status} {answer.ending.value}" for answer in answers).items()))


def faults(answers: Iterable[Answer], *, most: int = 5) -> list[str]:
    """What was said where something went wrong that no load excuses."""
    wrong = [answer for answer in answers if is_fault(answer)]
    return [f"{answer.status} {answer.ending.value}: {answer.body[:300]}" for answer in wrong[:most]]


def is_fault(answer: Answer) -> bool:
    """Lost, cut off by an error, or refused with another status than 429; a 429 without Retry-After too."""
    if answer.ending is Ending.REFUSED:
        return answer.status != 429 or answer.retry_after_s is None
    return answer.ending is not Ending.DONE


def retry_after(load: Load) -> list[dict[str, float]]:
    """For each BIN_S of a load: how many were refused, and the median and the longest Retry-After they were told."""
    bins: dict[int, list[float]] = {}
    for answer in load.answers:
        if answer.retry_after_s is not None:
            bins.setdefault(int((answer.ended_s - load.began_s) / BIN_S), []).append(answer.retry_after_s)
    return [
        {"at_s": number * BIN_S, "refused": len(told), "median_s": statistics.median(told), "longest_s": max(told)}
        for number, told in sorted(bins.items())
    ]


def summary(load: Load) -> dict[str, Any]:
    """One load in figures."""
    first_s = first_tokens_s(load.answers)
    return {
        "seconds": round(load.ended_s - load.began_s, 1),
        "clients": len(load.visits),
        "tries": len(load.answers),
        "endings": endings(load.answers),
        "answered_clients": sum(visit.answers[-1].ending is Ending.DONE for visit in load.visits),
        "goodput_tokens_per_s": round(load.goodput, 1),
        "first_token_ms": milliseconds(first_s),
        "faults": faults(load.answers),
    }


def milliseconds(values_s: Sequence[float]) -> dict[str, float]:
    """Median, 95th and 99th percentile."""
    return {name: round(1000 * percentile(values_s, share), 1) for name, share in _SHARES}


_SHARES = (("median", 0.5), ("p95", 0.95), ("p99", 0.99))
