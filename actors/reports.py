"""What a device did in a job, asked of its actor and of the workers at it, and put together.

A worker or a device that is gone has taken its own figures along: they count as 0, and what was answered is the
job's own count. Not the place for a broken sum: that is raised as the device found it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from actors.devices import living_device
from actors.spec import WorkerFigures
from kvcluster.services.statistics import DeviceReport, DeviceStatistics

ANSWER_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Answered:
    """What the job counted at one device, in so many seconds."""

    requests: int
    tokens: int
    seconds: float


def device_report(name: str, node_id: str, answered: Answered, workers: Sequence[Any]) -> DeviceReport:
    """The report of device `name`, after it was audited.

    Raises:
        InvariantBroken: the device's figures do not sum.
    """
    device = living_device(name, node_id)
    asked = [worker.figures.remote() for worker in workers]
    there: DeviceStatistics | None = _told(device.audit.remote()) if device else None
    done: list[WorkerFigures] = [told for reference in asked if (told := _told(reference))]
    return DeviceReport(
        device=name,
        requests=answered.requests,
        generated_tokens=answered.tokens,
        seconds=answered.seconds,
        peak_reserved_bytes=there.peak_reserved_bytes if there else 0,
        peak_committed_bytes=there.peak_committed_bytes if there else 0,
        peak_live_bytes=sum(worker.peak_live_bytes for worker in done),
        control_messages=sum(worker.control_messages for worker in done),
        driver_calls=(sum(there.driver_calls.values()) if there else 0) + sum(worker.driver_calls for worker in done),
    )


def _told(reference: Any) -> Any | None:
    """The answer, or None where nobody is left to give it."""
    try:
        return ray.get(reference, timeout=ANSWER_TIMEOUT_S)
    except RayTaskError:
        raise
    except RayError:
        return None
