"""What travels between a job and its request actors, besides requests. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from kvcluster.config import Settings
from kvcluster.services.completion import Completion, Refused


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """A worker of a job: which model, with which settings, at which device of which node.

    `device` is empty where it is the GPU that Ray gives the worker. `threads` are for its computing; `name`
    is the worker's among all of the cluster, where it has one; `model` is what it is called where it is served, else
    its folder's name stands for it.
    """

    model_folder: str
    settings: Settings
    device: str
    node_id: str
    threads: int = 1
    name: str = ""
    model: str = ""


@dataclass(frozen=True, slots=True)
class Placed:
    """A worker that has a process and is to sit at `device`, by its name, which is a GPU's UUID.

    `started`: see `session_file.began_at`.
    """

    device: str
    pid: int
    started: int = 0


@dataclass(frozen=True, slots=True)
class Opened:
    """A worker that is ready: its process, its device's name, and that of its host pages; `session` is its with the
    device.
    """

    pid: int
    device: str
    pages: str = ""
    session: str = ""


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """What a worker did so far, as a report needs it. Each peak is of one of its steps."""

    peak_reserved_bytes: int = 0
    peak_committed_bytes: int = 0
    peak_live_bytes: int = 0
    control_messages: int = 0
    driver_calls: int = 0
    recomputed_tokens: int = 0
    adoptions: int = 0

    def beside(self, other: WorkerFigures) -> WorkerFigures:
        """Both together: counts add up; of the peaks the higher one stands, for they were at different moments."""
        return WorkerFigures(
            peak_reserved_bytes=max(self.peak_reserved_bytes, other.peak_reserved_bytes),
            peak_committed_bytes=max(self.peak_committed_bytes, other.peak_committed_bytes),
            peak_live_bytes=max(self.peak_live_bytes, other.peak_live_bytes),
            control_messages=self.control_messages + other.control_messages,
            driver_calls=self.driver_calls + other.driver_calls,
            recomputed_tokens=self.recomputed_tokens + other.recomputed_tokens,
            adoptions=self.adoptions + other.adoptions,
        )


@dataclass(frozen=True, slots=True)
class Collected:
    """What finished since the last time, under its caller's keys, and what the worker did so far.

    `is_last`: the worker was told to stop, and there will be no more. `session` is its with the device by now.
    """

    outcomes: list[tuple[int, Completion | Refused]]
    figures: WorkerFigures
    is_last: bool = False
    session: str = ""
