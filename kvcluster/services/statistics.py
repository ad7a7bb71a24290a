"""Figures of a device: what it did in a job, and how it stands at one moment. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """One job's time at one device. Messages are frames and their replies, heartbeats excluded.

    Peaks are of one moment each. What is live each worker knows for itself: it is that of the worker that had most,
    which is exact for one worker a device, too low for several, and never above what was committed.
    """

    device: str
    requests: int
    generated_tokens: int
    seconds: float
    peak_reserved_bytes: int
    peak_committed_bytes: int
    peak_live_bytes: int
    control_messages: int
    driver_calls: int

    @property
    def tokens_per_s(self) -> float:
        return self.generated_tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def messages_per_token(self) -> float:
        return self.control_messages / self.generated_tokens if self.generated_tokens else 0.0


@dataclass(frozen=True, slots=True)
class DeviceStatistics:
    """One device at one moment, every figure read under one lock. Bytes unless the name says otherwise.

    `accounts` are the ledger's claims and sum to `capacity_bytes`; `handles` is the same memory seen physically, by
    handle state; `pids` and `silent_s` are each session's process and how long ago it was last heard; `driver_calls`
    counts calls of the device's own process.
    """

    device: str
    epoch: int
    capacity_bytes: int
    accounts: Mapping[str, int]
    handles: Mapping[str, int]
    reserved_bytes: int
    peak_reserved_bytes: int
    committed_bytes: int
    peak_committed_bytes: int
    sessions: Mapping[str, str]
    pids: Mapping[str, int]
    silent_s: Mapping[str, float]
    ended_names: int
    idle_s: float
    open_requests: int
    requests: int
    frames: int
    stored_replies: int
    refusals: Mapping[str, int]
    driver_calls: Mapping[str, int]

    @property
    def free_bytes(self) -> int:
        return self.accounts.get("free", 0)
