"""What a sequence is to be, and the budget that is held for it. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from kvcluster.geometry.layout import Layout
from kvcluster.geometry.model import KvGeometry
from kvcluster.geometry.residency import CHUNK_TOKENS
from kvcluster.ids import GrantId, RequestId


@dataclass(frozen=True, slots=True)
class SequenceSpec:
    """What is kept a token, how it lies, and for how many tokens an address is reserved.

    `after` is an earlier request of the same port, ended by now, whose place in the device's queue this one takes.
    `chunk_tokens` is the most that one step computes of it. What it holds is its `tenant`'s. What lies below
    `shareable_tokens` can be shared to the last whole granule; above, larger handles may be used. What a Find finds
    for it was written under the same `cache_root` (`index.identity`); without one it finds nothing.
    """

    geometry: KvGeometry
    layout: Layout
    max_tokens: int
    after: RequestId | None = None
    chunk_tokens: int = CHUNK_TOKENS
    tenant: str = ""
    shareable_tokens: int = 0
    cache_root: bytes = b""


@dataclass(frozen=True, slots=True)
class Grant:
    """Budget that the device holds for a request, for a few seconds."""

    identity: GrantId
    size_bytes: int
