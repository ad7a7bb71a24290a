"""How a cluster's actors stand at one moment: what `kvcluster status`, `top` and GET /v1/kv show. Values only.

What an actor says of itself, and where it does not answer, what others know of it. Counts are of an actor's process
and begin again with the next one; what they come to a second needs two looks (`services.paces`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from kvcluster.services.answered import Answered
from kvcluster.services.chronicle import Death

NOTHING_ANSWERED = Answered()


class WorkerState(StrEnum):
    """Of a request actor, by its own word."""

    OPENING = "opening"  # it finds its memory and loads the model
    SERVING = "serving"
    STOPPING = "stopping"  # its loop ends at the next step
    STOPPED = "stopped"  # and has given its memory back
    FAILED = "failed"  # of no more use: whoever made it ends it


@dataclass(frozen=True, slots=True)
class WorkerWord:
    """What a request actor, or a replica, says. Requests that wait hold no memory. `model` is the served name."""

    pid: int
    device: str
    state: WorkerState
    running: int = 0
    waiting: int = 0
    generated_tokens: int = 0
    answered: Answered = NOTHING_ANSWERED
    model: str = ""


@dataclass(frozen=True, slots=True)
class WorkerStanding:
    """A request actor or a replica. `word` is None where it does not answer, which `complaint` says.

    `tokens_per_s` it generated since the look before this one, and so many requests it refused, by code; None and
    empty where there was no such look, or another process.
    """

    name: str
    node_id: str
    pid: int
    word: WorkerWord | None
    complaint: str | None = None
    tokens_per_s: float | None = None
    refused_per_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SessionStanding:
    """A client of an owner: its process, and how long ago that was last heard."""

    pid: int
    state: str
    silent_s: float


@dataclass(frozen=True, slots=True)
class OwnerStanding:
    """A device, or a node's host pages. Figures are empty, and `complaint` says why, where it does not answer.

    `bytes_by_kind` are its accounts, those of a kind together: free, granted, request, prefix, retained, quarantine,
    foreign. `number` counts the processes of this name, `pid` is 0 where nobody knows it. `refusals` are what this
    process refused to clients, by the error's name; they ask again, so that a request may be refused many times and
    answered. `refusals_per_s` is since the look before this one.
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
    refusals: Mapping[str, int] = field(default_factory=dict)
    evictions: int = 0
    complaint: str | None = None
    refusals_per_s: Mapping[str, float] = field(default_factory=dict)


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


def picture(found: ClusterStanding) -> dict[str, Any]:
    """The same as one JSON object: `status --json`, `top --json` and GET /v1/kv."""
    return {**_plain(found), "complaints": found.complaints}


def encoded_word(word: WorkerWord) -> dict[str, Any]:
    """A word of plain values, for processes that do not have our code."""
    return _plain(word)


def decoded_word(said: object) -> WorkerWord | None:
    """What `encoded_word` made; None where it is something else."""
    try:
        fields = dict(said)  # type: ignore[call-overload]
        answered, state = Answered(**fields.pop("answered")), WorkerState(fields.pop("state"))
        return WorkerWord(**fields, answered=answered, state=state)
    except (TypeError, ValueError, KeyError):
        return None


def _plain(value: Any) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(asdict(value)))
    return plain


@dataclass(frozen=True, slots=True)
class Remaining:
    """An actor that did not end when it was told to, and why."""

    name: str
    node_id: str
    pid: int
    reason: str
