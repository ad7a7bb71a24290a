"""What travels between a job and its request actors, besides requests and answers. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from kvcluster.config import Settings


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """A worker of a job: which model, with which settings, at which device of which node."""

    model_folder: str
    settings: Settings
    device: str
    node_id: str


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """What one worker did so far, as a report needs it."""

    peak_live_bytes: int
    control_messages: int
    driver_calls: int
