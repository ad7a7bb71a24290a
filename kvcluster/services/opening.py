"""What a request is to be, as its client said it, and what that is on a device. Pure: costs no bytes."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from kvcluster.geometry.residency import GroupShape, RangeMap, Shape
from kvcluster.ids import RequestId
from kvcluster.index.identity import root_for
from kvcluster.memory.handle_sizes import HandleSizes
from kvcluster.memory.reservation import Terms
from kvcluster.wire.socket import Welcome


@dataclass(frozen=True, slots=True)
class Opening:
    """What a request is to be: its shape, its most tokens, whose it is, and how much of it others may share.

    `after` is a request that has ended, whose place in the queue this one takes. Its tokens are found under
    `cache_root`, if it has one.
    """

    groups: tuple[GroupShape, ...]
    max_tokens: int
    after: RequestId | None = None
    tenant: str = ""
    shareable_tokens: int = 0
    cache_root: bytes = b""

    def range_map(self, granule_bytes: int) -> RangeMap:
        return RangeMap(Shape(self.groups, granule_bytes), self.max_tokens)

    def terms(self, range_map: RangeMap, arrival: int, *, largest_bytes: int) -> Terms:
        """Its tokens are found by its own tenant alone, whoever else names the same root."""
        sizes = HandleSizes.of(range_map.shape, self.shareable_tokens, largest_bytes)
        return Terms(sizes, arrival, self.tenant, root_for(self.tenant, self.cache_root))


def most_bytes_of(range_map: RangeMap) -> int:
    """The most that a request can have at one time: all its tokens, or its snapshots."""
    shape = range_map.shape
    snapshots = shape.window_count(shape.with_snapshots(shape.windows(0)))
    return max(range_map.most_bytes, snapshots * shape.granule_bytes)


def most_tokens_in(shape: Shape, capacity_bytes: int, *, at_most: int) -> int:
    """The most tokens, up to `at_most`, of a request that so much takes, alone; 0: not even one fits."""

    def most_bytes(tokens: int) -> int:
        return most_bytes_of(RangeMap(shape, tokens))

    return bisect_right(range(1, at_most + 1), capacity_bytes, key=most_bytes)


def most_tokens_of_pages(welcome: Welcome, usable_bytes: int) -> int:
    """The same of host pages, which keep all tokens alike."""
    return usable_bytes // welcome.granule_bytes * welcome.block_tokens
