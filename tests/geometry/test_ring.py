"""A ring never overwrites a row that is still needed, and never costs more than keeping everything would."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcluster.geometry.layout import GroupLayout, Layout
from kvcluster.geometry.model import LayerGroup
from kvcluster.geometry.ring import Ring
from kvcluster.units import KIB

SMALL = st.integers(1, 12)
RINGS = st.builds(Ring, SMALL, SMALL, st.integers(1, 24), st.integers(1, 64))
GEMMA_SLIDING = LayerGroup(tuple(range(15)), kv_heads=1, head_dim=256, window_tokens=512)


def _bytes_of_row(ring: Ring, token: int) -> set[int]:
    """The row's bytes in the ring's own granules, whichever of the two mappings they are reached through."""
    start = ring.offset_bytes(token)
    return {(start + i) % ring.size_bytes for i in range(ring.stride_bytes)}


@given(RINGS, st.integers(0, 100))
def test_rows_that_a_chunk_writes_or_sees_never_overlap(ring: Ring, first_written: int) -> None:
    live = range(max(0, first_written - ring.window_tokens + 1), first_written + ring.chunk_tokens)
    assert ring.holds(live.start, live.stop)
    occupied = [_bytes_of_row(ring, token) for token in live]
    assert len(set().union(*occupied)) == len(live) * ring.stride_bytes


@given(RINGS, st.integers(0, 100), st.integers(1, 24))
def test_a_span_that_fits_is_contiguous_within_the_two_mappings(ring: Ring, first: int, count: int) -> None:
    end = ring.offset_bytes(first) + count * ring.stride_bytes
    assert ring.holds(first, first + count) == (count * ring.stride_bytes <= ring.size_bytes)
    assert not ring.holds(first, first + count) or end <= ring.address_bytes


@given(RINGS, st.integers(0, 60))
def test_windows_for_are_the_granules_that_rows_have_touched(ring: Ring, tokens: int) -> None:
    touched = {byte // ring.granule_bytes for token in range(tokens) for byte in _bytes_of_row(ring, token)}
    assert touched == set(range(ring.windows_for(tokens)))
    assert ring.committed_bytes(tokens) == len(touched) * ring.granule_bytes


@given(RINGS, st.integers(0, 60))
def test_a_ring_costs_no_more_than_keeping_every_token(ring: Ring, tokens: int) -> None:
    keep_everything = -(-tokens * ring.stride_bytes // ring.granule_bytes) * ring.granule_bytes
    assert ring.committed_bytes(tokens) == min(keep_everything, ring.size_bytes)
    assert ring.live_bytes(tokens) <= ring.committed_bytes(tokens)


@given(RINGS)
def test_the_ring_is_the_fewest_whole_granules_that_hold_a_window_and_a_chunk(ring: Ring) -> None:
    needed = (ring.window_tokens + ring.chunk_tokens - 1) * ring.stride_bytes
    assert ring.size_bytes % ring.granule_bytes == 0
    assert needed <= ring.size_bytes < needed + ring.granule_bytes


@given(RINGS, st.integers(0, 60))
def test_nothing_is_committed_after_the_first_lap(ring: Ring, tokens: int) -> None:
    lap = -(-ring.size_bytes // ring.stride_bytes)
    assert ring.windows_for(lap + tokens) == ring.windows


def test_gemma3_270m_needs_one_ring_of_180_granules() -> None:
    ring = Ring.of(GroupLayout(GEMMA_SLIDING, Layout.TOKEN_MAJOR, 2), chunk_tokens=256, granule_bytes=64 * KIB)
    assert (ring.stride_bytes, ring.windows, ring.size_bytes) == (15 * KIB, 180, 11_796_480)


def test_a_group_that_keeps_every_token_has_no_ring() -> None:
    layout = GroupLayout(replace(GEMMA_SLIDING, window_tokens=None), Layout.TOKEN_MAJOR, 2)
    with pytest.raises(ValueError, match="has no ring"):
        Ring.of(layout, chunk_tokens=256, granule_bytes=64 * KIB)


@pytest.mark.parametrize("broken", [(0, 1, 1, 1), (1, 0, 1, 1), (1, 1, 0, 1), (1, 1, 1, 0)])
def test_a_ring_without_window_chunk_stride_or_granule_is_refused(broken: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Ring(*broken)
