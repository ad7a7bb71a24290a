"""A sliding window kept for others: the rows before a boundary, copied out of a ring and into another.

A ring is overwritten as its sequence goes on, so it cannot be shared. Where a prefix is published, the W tokens
before its boundary J are copied into windows of their own, which are; whoever joins copies them into its ring.

    ring        ... row J-W ... row J-1 ...      token t at t x stride modulo the ring
    snapshot    [ row J-W ... row J-1 ]          token t at (t - max(0, J - W)) x stride

One strided copy a group, all fragments at once. Nothing here waits: on a GPU the copies run in the current stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from kvcluster.geometry.model import KvGeometry
from kvcluster.geometry.residency import RangeMap
from kvcluster.tensors.memory import CPU, memory_at


class _Pair(NamedTuple):
    """The same rows as [fragments, bytes], in a ring and in its snapshot."""

    ring: torch.Tensor
    snapshot: torch.Tensor


def snapshot_is_possible(range_map: RangeMap, geometry: KvGeometry, *, tokens: int, written: int) -> bool:
    """Whether the rows before the boundary `tokens` lie in every ring when `written` tokens have been written.

    Always so while no more than a step's tokens were written behind the boundary.
    """
    return all(
        tokens <= written
        and (written - first) * range_map.shape.groups[ring].stride_bytes <= range_map.ring_bytes(ring)
        for ring, _, first in _windows_before(range_map, geometry, tokens)
    )


def copy_to_snapshot(
    address: int, range_map: RangeMap, geometry: KvGeometry, *, tokens: int, written: int, device: torch.device = CPU
) -> None:
    """Copy the rows before the boundary `tokens` from each ring of the range at `address` into its snapshot.

    The windows of both are mapped, the snapshot's for writing.

    Raises:
        ValueError: they are not written yet, or were overwritten by the `written` tokens. Nothing was copied.
    """
    if not snapshot_is_possible(range_map, geometry, tokens=tokens, written=written):
        raise ValueError(f"the window before token {tokens} is not in the ring when {written} tokens are written")
    for pair in _pairs(address, range_map, geometry, tokens, device):
        pair.snapshot.copy_(pair.ring)


def copy_from_snapshot(
    address: int, range_map: RangeMap, geometry: KvGeometry, *, tokens: int, device: torch.device = CPU
) -> None:
    """Copy the rows before the boundary `tokens` from each snapshot of the range at `address` into its ring.

    The ring's windows for `tokens` tokens are mapped for writing, and the snapshot's are mapped.
    """
    for pair in _pairs(address, range_map, geometry, tokens, device):
        pair.ring.copy_(pair.snapshot)


def _pairs(
    address: int, range_map: RangeMap, geometry: KvGeometry, tokens: int, device: torch.device
) -> Iterator[_Pair]:
    memory = memory_at(address, range_map.size_bytes, torch.uint8, device)
    for ring, snapshot, first in _windows_before(range_map, geometry, tokens):
        shape = range_map.shape.groups[ring]
        size = (shape.fragments, (tokens - first) * shape.stride_bytes)
        at = range_map.fragment_offset_bytes(ring, 0) + first * shape.stride_bytes % range_map.ring_bytes(ring)
        yield _Pair(
            memory.as_strided(size, (range_map.fragment_pitch_bytes(ring), 1), at),
            memory.as_strided(
                size, (range_map.fragment_pitch_bytes(snapshot), 1), range_map.fragment_offset_bytes(snapshot, 0)
            ),
        )


def _windows_before(range_map: RangeMap, geometry: KvGeometry, tokens: int) -> Iterator[tuple[int, int, int]]:
    """Each ring's group, that of its snapshot, and the first token of its window before `tokens`."""
    for ring, snapshot in range_map.shape.snapshots():
        window_tokens = geometry.groups[ring].window_tokens
        assert window_tokens is not None  # that is what makes it a ring
        yield ring, snapshot, max(0, tokens - window_tokens)
