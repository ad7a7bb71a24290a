"""What owners of memory, workers and the HTTP side tell of themselves as metrics, and how often.

Owners and workers are looked at every few seconds, and never at the expense of a frame or a step; what they count is
told as what it rose since it was told last, and what stands again and again, because Ray forgets it otherwise. Requests
are told by the HTTP side as they end. Ray's node agents offer the values to Prometheus as `ray_kvcluster_…` (the port
by `ray start --metrics-export-port`); they need the parts of ray[default], which ray[serve] has. Which metrics there
are is in `actors.metric_table`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import ray

from actors.meters import METERS, Counts, Meters
from kvcluster.services.answered import Answered
from kvcluster.services.by_kind import bytes_by_kind, refusals_by_reason
from kvcluster.services.pages.statistics import PageStatistics
from kvcluster.services.statistics import DeviceStatistics

if TYPE_CHECKING:
    from actors.openai.observer import Ended
    from kvcluster.services.request.statistics import RequestStatistics

TELL_EVERY_S = 5.0
_SHORTEST_REPORT_S = 1.0  # Ray's own floor (2.60)

_BYTES_OF = {  # the accounts behind a metric
    "free": "free",
    "granted": "granted",
    "request": "request",
    "prefix": "prefix",
    "retained": "retained",
    "foreign": "foreign",
    "quarantined": "quarantine",
}


def telling_period_s() -> float:
    """How often to tell what stands: twice between two reports of Ray's, which shows no gauge that missed two of them.

    Measured, with a report a second: gauges told every 5 s were there for one second of three.
    """
    config = getattr(ray, "_config", None)  # of the cluster that this process is connected to; no public name has it
    report_s = config.metrics_report_interval_ms() / 1000 if config is not None else 2 * TELL_EVERY_S
    return min(TELL_EVERY_S, max(report_s, _SHORTEST_REPORT_S) / 2)


class MemoryTelling:
    """The chore of an owner of memory (see `actors.serving`): tells its figures every few seconds."""

    def __init__(
        self,
        figures: Callable[[], DeviceStatistics | PageStatistics],
        *,
        incarnation: int,
        counts: Counts | None = None,
        every_s: float | None = None,
    ) -> None:
        self._figures = figures
        self._incarnation = incarnation
        self._every_s = every_s or telling_period_s()
        self._counts = counts or Counts()
        self._ended = threading.Event()

    def run(self) -> None:
        """The whole of a thread; returns after `end`."""
        while not self._ended.is_set():
            tell_memory(self._counts, self._figures(), self._incarnation)
            self._ended.wait(self._every_s)

    def end(self) -> None:
        """`run` returns soon. Again: nothing."""
        self._ended.set()


def tell_memory(counts: Counts, figures: DeviceStatistics | PageStatistics, incarnation: int) -> None:
    """The figures of a device, or of host pages, of one moment."""
    device = {"device": figures.device}
    levels = {"capacity_bytes": figures.capacity_bytes, "epoch": figures.epoch, "incarnation": incarnation}
    held = bytes_by_kind(figures.accounts)
    levels |= {f"{name}_bytes": held.get(kind, 0) for name, kind in _BYTES_OF.items()}
    states = list(figures.sessions.values())
    levels |= {f"sessions_{state}": states.count(state) for state in ("live", "orphaned")}
    for name, value in levels.items():
        counts.level(f"kvcluster_memory_{name}", value, device)
    for reason, count in refusals_by_reason(figures).items():
        counts.total("kvcluster_memory_refusals", count, {**device, "reason": reason})
    counts.total("kvcluster_memory_evictions", figures.evictions, device)


class WorkerTelling:
    """Of one worker; its loop calls `tell` after every step, which is nothing but every few seconds."""

    def __init__(
        self, model: str, counts: Counts | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._model = model
        self._clock = clock
        self._due_s = clock()
        self._every_s = telling_period_s()
        self._counts = counts or Counts()

    def tell(self, device: str, figures: Callable[[], RequestStatistics], answered: Answered) -> None:
        """How it stands, where it is time to say so."""
        if self._clock() < self._due_s:
            return
        self._due_s = self._clock() + self._every_s
        tell_worker(self._counts, figures(), answered, {"device": device, "model": self._model})


def tell_worker(counts: Counts, figures: RequestStatistics, answered: Answered, labels: Mapping[str, str]) -> None:
    """The figures of a worker of one moment."""
    totals = {
        "generated_tokens": figures.generated_tokens,
        "prompt_tokens": answered.prompt_tokens,
        "cached_tokens": answered.cached_tokens,
        "recomputed_tokens": figures.recomputed_tokens,
        "preemptions": figures.preemptions,
        "messages": figures.control_messages,
    }
    levels = {
        "running": figures.running,
        "waiting": figures.waiting,
        "committed_per_live": figures.committed_per_live,
    }
    for name, total in totals.items():
        counts.total(f"kvcluster_worker_{name}", total, labels)
    for name, value in levels.items():
        counts.level(f"kvcluster_worker_{name}", value, labels)
    counts.total("kvcluster_worker_requests", answered.completed, {**labels, "outcome": "completed", "reason": ""})
    for reason, count in answered.refused.items():
        counts.total("kvcluster_worker_requests", count, {**labels, "outcome": "refused", "reason": reason})


class HttpTelling:
    """The observer of the HTTP side (`actors.openai.observer`), on its event loop: each request is told as it ends.

    How many are open is told every few seconds as long as there are any, and once when there are none.
    """

    def __init__(self, meters: Meters = METERS, *, every_s: float | None = None) -> None:
        self._meters = meters
        self._every_s = every_s or telling_period_s()
        self._open = 0
        self._is_telling = False

    def began(self) -> None:
        self._open += 1
        if not self._is_telling:
            self._tell_open()

    def ended(self, ended: Ended) -> None:
        self._open -= 1
        model = {"model": ended.model}
        how = {**model, "outcome": ended.outcome}
        self._meters.add("kvcluster_http_requests", 1, {**how, "reason": ended.reason})
        self._meters.note("kvcluster_http_request_seconds", ended.total_s, how)
        if ended.first_token_s is not None:
            self._meters.note("kvcluster_http_first_token_seconds", ended.first_token_s, model)

    def _tell_open(self) -> None:
        self._meters.set("kvcluster_http_open", self._open, {})
        self._is_telling = self._open > 0
        if self._is_telling:
            asyncio.get_running_loop().call_later(self._every_s, self._tell_open)
