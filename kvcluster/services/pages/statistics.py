"""Figures of host pages at one moment. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PageStatistics:
    """Every figure read under one lock. Bytes unless the name says otherwise; `accounts` sum to `capacity_bytes`.

    `pids` and `silent_s` are each session's process and how long ago it was last heard, and `quarantined` what waits
    for that process; `peak_used_bytes` is the most that sequences, shared blocks and quarantine had together after any
    frame.
    `found_tokens` of `asked_tokens` needed no computing, over `lookups`; `listed_blocks` are those that a lookup can
    find; `evictions` counts blocks.
    """

    device: str
    epoch: int
    blocks: int
    free_blocks: int
    block_tokens: int
    capacity_bytes: int
    peak_used_bytes: int
    accounts: Mapping[str, int]
    tenants: Mapping[str, int]
    sessions: Mapping[str, str]
    pids: Mapping[str, int]
    silent_s: Mapping[str, float]
    quarantined: Mapping[str, int]
    open_requests: int
    running_requests: int
    requests: int
    frames: int
    refusals: Mapping[str, int]
    listed_blocks: int
    lookups: int
    asked_tokens: int
    found_tokens: int
    evictions: int
    idle_s: float

    @property
    def free_bytes(self) -> int:
        return self.accounts.get("free", 0)

    @property
    def retained_bytes(self) -> int:
        """What nobody uses, kept until its room is needed."""
        return sum(size_bytes for account, size_bytes in self.accounts.items() if account.startswith("retained"))


@dataclass(frozen=True, slots=True)
class HostReport:
    """One job's time at a node's host pages; all workers of the node share them.

    `peak_used_bytes` is the pages' own, an earlier job's included: no worker knows what the others had.
    """

    pages: str
    memory_bytes: int
    peak_used_bytes: int
    lookups: int
    asked_tokens: int
    found_tokens: int
    evictions: int
