"""Figures of a device: what it did in a job, and how it stands at one moment. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvcluster.services.pages.statistics import PageStatistics


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """One job's time at one device. Messages are frames and their replies, heartbeats excluded.

    Peaks are of one moment each. What is live each worker knows for itself: it is that of the worker that had most,
    which is exact for one worker a device, too low for several, and never above what was committed. Of `asked_tokens`
    that were looked up `found_tokens` needed no computing; a request that is computed again is looked up again. Tokens
    that were computed before, and lost by a failure, are `recomputed_tokens`.
    """

    device: str
    requests: int
    generated_tokens: int
    seconds: float
    peak_reserved_bytes: int
    peak_committed_bytes: int
    peak_live_bytes: int
    asked_tokens: int
    found_tokens: int
    control_messages: int
    driver_calls: int
    recomputed_tokens: int = 0

    @property
    def tokens_per_s(self) -> float:
        return self.generated_tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def messages_per_token(self) -> float:
        return self.control_messages / self.generated_tokens if self.generated_tokens else 0.0


@dataclass(frozen=True, slots=True)
class PrefixStatistics:
    """A shared prefix: its tokens, the bytes that are its own (not its parent's), and how many use it now.

    `pins` are sessions that use it no longer, and whose process may still have it mapped.
    """

    tokens: int
    size_bytes: int
    state: str
    users: int
    pins: int


@dataclass(frozen=True, slots=True)
class DeviceStatistics:
    """One device at one moment, every figure read under one lock. Bytes unless the name says otherwise.

    `accounts` are the ledger's claims and sum to `capacity_bytes`; `handles` is the same memory seen physically, by
    handle state; `running_requests` are those that hold memory or share some; `pids` and `silent_s` are each session's
    process and how long ago it was last heard, and `quarantined` what waits for that process; `driver_calls` counts
    calls of the device's own process. `tenants` is what each tenant uses, `retained_bytes` what is kept until its room
    is needed, `sharing_refusals` counts by kind; `evictions` and `created_ahead` count prefixes and handles; `lookups`
    are finds, by which `found_tokens` of `asked_tokens` need no computing, and `listed_prefixes` those that a find can
    find. Of what is retained, `kept_bytes` are for successors of processes that died.
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
    quarantined: Mapping[str, int]
    ended_names: int
    idle_s: float
    open_requests: int
    running_requests: int
    requests: int
    frames: int
    stored_replies: int
    refusals: Mapping[str, int]
    sharing_refusals: Mapping[str, int]
    prefixes: Mapping[int, PrefixStatistics]
    retained_bytes: int
    listed_prefixes: int
    lookups: int
    asked_tokens: int
    found_tokens: int
    evictions: int
    created_ahead: int
    tenants: Mapping[str, int]
    driver_calls: Mapping[str, int]
    kept_bytes: int = 0

    @property
    def foreign_bytes(self) -> int:
        """What clients still have mapped of earlier incarnations."""
        return sum(size_bytes for account, size_bytes in self.accounts.items() if account.startswith("foreign/"))

    @property
    def free_bytes(self) -> int:
        return self.accounts.get("free", 0)


@dataclass(frozen=True, slots=True)
class AuditedDevice:
    """What a device, or host pages, answered when asked to count their books.

    `figures` where everything sums; else None, and `complaint` says in one sentence what does not.
    """

    device: str
    node_id: str
    figures: DeviceStatistics | PageStatistics | None
    complaint: str | None = None
