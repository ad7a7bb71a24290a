"""The batch job's view of request actors: numbered workers that take requests and report what became of them.

`actors.cluster` implements it over Ray; the job itself knows no Ray. Delivery to the job is at least once: a
worker that was thought dead may still report, and the job keeps the first outcome of each key.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvcluster.errors import KvClusterError
from kvcluster.services.completion import Completion, CompletionRequest, Refused
from kvcluster.services.pages.statistics import HostReport
from kvcluster.services.statistics import DeviceReport


class AllWorkersLost(KvClusterError):
    """No worker is left and none comes back. Results so far are kept."""

    def __init__(self, *, reason: str) -> None:
        super().__init__(f"no worker is left ({reason}): run the same command again to continue where it stopped")
        self.reason = reason


class ClusterStopped(KvClusterError):
    """Somebody told the workers to stop. Results so far are kept."""

    def __init__(self) -> None:
        super().__init__(
            "the cluster was told to stop (kvcluster stop): finished results are kept, and the same command continues "
            "where it stopped"
        )


@dataclass(frozen=True, slots=True)
class Finished:
    key: int
    outcome: Completion | Refused


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """What was submitted to `worker` and has not finished is gone with it: submit it again, anywhere.

    `returns` says that a WorkerReady of the same number follows, or else a second WorkerLost. `session` was its with
    the device, which may have what it computed under that name (`CompletionRequest.died_with`), for `kept_s` from its
    death on: the workers `beside` it are at the same device. Empty: it had none.
    """

    worker: int
    reason: str
    returns: bool
    session: str = ""
    kept_s: float = 0.0
    beside: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """A worker that was lost is back, empty."""

    worker: int


@dataclass(frozen=True, slots=True)
class WorkerStopped:
    """A worker was told to stop, by somebody else than the job. What it had finished was reported before this."""

    worker: int


Event = Finished | WorkerLost | WorkerReady | WorkerStopped


class Workers(Protocol):
    @property
    def count(self) -> int:
        """Workers are numbered from 0."""

    @property
    def ready(self) -> Collection[int]:
        """Those that take requests now: at the start of a job not all, where an earlier one lost some."""

    @property
    def returning(self) -> Collection[int]:
        """Those that take none before their WorkerReady; a WorkerLost comes instead where that takes too long."""

    def submit(self, worker: int, items: Sequence[tuple[int, CompletionRequest]]) -> None:
        """Hand over (key, request) pairs. Returns at once; a worker that is dead is reported by `wait`, not here."""

    def wait(self, timeout_s: float) -> Sequence[Event]:
        """What happened, in order; empty after `timeout_s` without news."""

    def drain(self, timeout_s: float) -> Sequence[Finished]:
        """What finished and was not reported yet. For the end of a job: no worker is heard any more after it."""


class Cluster(Workers, Protocol):
    """What `actors.cluster.open_cluster(settings)` yields."""

    def device_reports(self) -> list[DeviceReport]:
        """One report a device, in the order of the settings' devices."""

    def host_reports(self) -> list[HostReport]:
        """One report for the host pages of each node; none where the job has none."""
