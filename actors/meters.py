"""The metrics of this process, through ray.util.metrics: each made once, when it is told first.

Where Ray is not connected nothing is made and nothing told. A metric has at most `MOST_SERIES` sets of labels in a
process, whatever the labels are made of: the rest is told as "other". What is told, and when, is in `actors.metrics`;
what there is, in `actors.metric_table`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import ray
from ray.util.metrics import Counter, Gauge, Histogram

from actors.metric_table import ROWS, Kind, Row

MOST_SERIES = 256
OTHER = "other"

_BY_NAME = {row.name: row for row in ROWS}

Labels = tuple[tuple[str, str], ...]


def made(row: Row) -> Any:
    """One of Ray's: it goes by its name, and is told to whatever cluster this process is connected to."""
    labels = tuple(map(str, row.labels))
    if row.kind is Kind.HISTOGRAM:
        return Histogram(row.name, row.meaning, list(row.boundaries), labels)
    return (Counter if row.kind is Kind.COUNTER else Gauge)(row.name, row.meaning, labels)


class Meters:
    """The metrics of a process, each made when it is told first. From any thread."""

    def __init__(
        self, make: Callable[[Row], Any] = made, *, is_connected: Callable[[], bool] = ray.is_initialized
    ) -> None:
        self._make = make
        self._is_connected = is_connected
        self._lock = threading.Lock()
        self._made: dict[str, Any] = {}
        self._series: dict[str, set[Labels]] = {}

    def set(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        """A gauge is so much."""
        if self._is_connected():
            self._meter(name).set(value, tags=self._tags(name, labels))

    def add(self, name: str, more: float, labels: Mapping[str, str]) -> None:
        """A counter rose by so much; by nothing is nothing."""
        if more > 0 and self._is_connected():
            self._meter(name).inc(more, tags=self._tags(name, labels))

    def note(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        """A histogram has one value more."""
        if self._is_connected():
            self._meter(name).observe(value, tags=self._tags(name, labels))

    def series(self) -> dict[str, int]:
        """How many sets of labels each metric has here."""
        with self._lock:
            return {name: len(found) for name, found in self._series.items()}

    def _meter(self, name: str) -> Any:
        with self._lock:
            if name not in self._made:
                self._made[name] = self._make(_BY_NAME[name])
            return self._made[name]

    def _tags(self, name: str, labels: Mapping[str, str]) -> dict[str, str]:
        asked = tuple(sorted(labels.items()))
        with self._lock:
            known = self._series.setdefault(name, set())
            if asked not in known and len(known) >= MOST_SERIES - 1:
                asked = tuple((label, OTHER) for label, _ in asked)
            known.add(asked)
        return dict(asked)


METERS = Meters()


class Counts:
    """Figures of one thing that counts from its own beginning, told as what they rose since the last time."""

    def __init__(self, meters: Meters = METERS) -> None:
        self._meters = meters
        self._told: dict[tuple[str, Labels], float] = {}

    def total(self, name: str, total: float, labels: Mapping[str, str]) -> None:
        """So much in all; less than before is another beginning."""
        key = (name, tuple(sorted(labels.items())))
        before = self._told.get(key, 0)
        self._told[key] = total
        self._meters.add(name, total - before if total >= before else total, labels)

    def level(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        """So much now."""
        self._meters.set(name, value, labels)
