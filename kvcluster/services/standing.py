"""How a cluster's actors stand at one moment, as `kvcluster status` shows it. Values only.

What an actor says of itself, and where it does not answer, what others know of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kvcluster.services.chronicle import Death


class WorkerState(StrEnum):
    """Of a request actor, by its own word."""

    OPENING = "opening"  # it finds its memory and loads the model
    SERVING = "serving"
    STOPPING = "stopping"  # its loop ends at the next step
    STOPPED = "stopped"  # and has given its memory back
    FAILED = "failed"  # of no more use: whoever made it ends it


@dataclass(frozen=True, slots=True)
class WorkerWord:
    """What a request actor says. Requests that wait hold no memory."""

    pid: int
    device: str
    state: WorkerState
    running: int = 0
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class WorkerStanding:
    """A request actor. `word` is None where it does not answer, which `complaint` says."""

    name: str
    node_id: str
    pid: int
    word: WorkerWord | None
    complaint: str | None = None


@dataclass(frozen=True, slots=True)
class SessionStanding:
    """A client of an owner: its process, and how long ago that was last heard."""

    pid: int
    state: str
    silent_s: float


@dataclass(frozen=True, slots=True)
class OwnerStanding:
    """A device, or a node's host pages. Figures are empty, and `complaint` says why, where it does not answer.

    `bytes_by_kind` are its accounts, those of a kind together: free, request, prefix, retained, quarantine, foreign.
    `number` counts the processes of this name, `pid` is 0 where nobody knows it.
    """

    kind: str
    name: str
    node_id: str
    pid: int
    number: int
    epoch: int = 0
    capacity_bytes: int = 0
    bytes_by_kind: Mapping[str, int] = field(default_factory=dict)
    sessions: tuple[SessionStanding, ...] = ()
    open_requests: int = 0
    running_requests: int = 0
    complaint: str | None = None


@dataclass(frozen=True, slots=True)
class ClusterStanding:
    """All of it. `deaths` are the last ones, the oldest first."""

    owners: tuple[OwnerStanding, ...]
    workers: tuple[WorkerStanding, ...]
    deaths: tuple[Death, ...]

    @property
    def complaints(self) -> list[str]:
        """One sentence for each that does not answer or does not sum."""
        everybody: list[OwnerStanding | WorkerStanding] = [*self.owners, *self.workers]
        return [
            f"{each.name} on node {each.node_id[:8]} (process {each.pid or 'unknown'}): {each.complaint}"
            for each in everybody
            if each.complaint is not None
        ]


@dataclass(frozen=True, slots=True)
class Remaining:
    """An actor that did not end when it was told to, and why."""

    name: str
    node_id: str
    pid: int
    reason: str
