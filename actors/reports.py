"""What a device did in a job: its own figures now and at the job's start, and those of the job's workers at it.

Counts are the job's time: an earlier job's calls are subtracted. A device's peak cannot be subtracted, so it counts
where this job's time raised it; else, and where the device is gone, the peak of the worker that had most stands for
it, as far as the device's own goes: a worker counts what it had in host pages too. What is live only workers know, each
for itself: it is the figure of the worker that had most live at one step, so that it is exact for one worker a device,
too low for several, and never above what was committed. Host pages tell for themselves (`host_report`).

A worker that died counts with what it told last. A device that died in the job has taken its calls and lookups along.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from actors.spec import WorkerFigures
from kvcluster.services.pages.statistics import HostReport, PageStatistics
from kvcluster.services.statistics import DeviceReport, DeviceStatistics

ANSWER_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Answered:
    """What the job counted at one device, in so many seconds."""

    requests: int
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Span:
    """A device at a job's start and now; None where nobody was there to tell."""

    start: DeviceStatistics | None
    now: DeviceStatistics | None

    @property
    def driver_calls(self) -> int:
        """What its process called in between; all that it ever called, if it is another process than at the start."""
        earlier = _calls(self.start) if self._is_one_process else 0
        return _calls(self.now) - earlier

    def count(self, name: str) -> int:
        """By how much that counter of the device rose in between; all that it counts, if it is another process."""
        earlier: int = getattr(self.start, name) if self._is_one_process else 0
        now: int = getattr(self.now, name, 0)
        return now - earlier

    def peak(self, name: str, workers_bytes: int) -> int:
        """The job's: the device's own, if it was reached in between; else the workers', as far as the device's goes."""
        bound_bytes = getattr(self.now, name) if self._is_one_process else workers_bytes
        return max(self._risen(name), min(workers_bytes, bound_bytes))

    @property
    def _is_one_process(self) -> bool:
        return self.start is not None and self.now is not None and self.start.epoch == self.now.epoch

    def _risen(self, name: str) -> int:
        peak: int = getattr(self.now, name, 0)
        return 0 if self._is_one_process and peak == getattr(self.start, name) else peak


def device_report(device: str, span: Span, answered: Answered, done: WorkerFigures) -> DeviceReport:
    """The report of a device; `done` is what all workers at it did, those that died included."""
    committed_bytes = span.peak("peak_committed_bytes", done.peak_committed_bytes)
    return DeviceReport(
        device=device,
        requests=answered.requests,
        generated_tokens=answered.tokens,
        seconds=answered.seconds,
        peak_reserved_bytes=span.peak("peak_reserved_bytes", done.peak_reserved_bytes),
        peak_committed_bytes=committed_bytes,
        peak_live_bytes=min(done.peak_live_bytes, committed_bytes),
        asked_tokens=span.count("asked_tokens"),
        found_tokens=span.count("found_tokens"),
        control_messages=done.control_messages,
        driver_calls=span.driver_calls + done.driver_calls,
        recomputed_tokens=done.recomputed_tokens,
    )


def host_report(start: PageStatistics | None, now: PageStatistics) -> HostReport:
    """The report of a node's host pages; `start` is how they stood when the job began, None where nobody told."""
    earlier = start if start is not None and start.epoch == now.epoch else None
    return HostReport(
        pages=now.device,
        memory_bytes=now.capacity_bytes,
        peak_used_bytes=now.peak_used_bytes,
        lookups=now.lookups - (earlier.lookups if earlier else 0),
        asked_tokens=now.asked_tokens - (earlier.asked_tokens if earlier else 0),
        found_tokens=now.found_tokens - (earlier.found_tokens if earlier else 0),
        evictions=now.evictions - (earlier.evictions if earlier else 0),
    )


def told(reference: Any) -> Any | None:
    """The answer, or None where nobody is left to give it.

    Raises:
        RayTaskError: what the actor raised, as its own class: a device's InvariantBroken, if its figures do not sum.
    """
    try:
        return ray.get(reference, timeout=ANSWER_TIMEOUT_S)
    except RayTaskError:
        raise
    except RayError:
        return None


def _calls(figures: DeviceStatistics | None) -> int:
    return sum(figures.driver_calls.values()) if figures else 0
