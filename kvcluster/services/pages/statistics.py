"""Figures of host pages at one moment. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PageStatistics:
    """Every figure read under one lock. Bytes unless the name says otherwise; `accounts` sum to `capacity_bytes`.

    `found_tokens` of `asked_tokens` needed no computing, over `lookups`; `listed_blocks` are those that a lookup can
    find; `evictions` counts blocks.
    """

    device: str
    epoch: int
    blocks: int
    free_blocks: int
    block_tokens: int
    capacity_bytes: int
    accounts: Mapping[str, int]
    tenants: Mapping[str, int]
    sessions: Mapping[str, str]
    pids: Mapping[str, int]
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
