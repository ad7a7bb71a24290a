"""How many granules a ring has. What lies in them byte by byte is counted in test_ring_windows.py."""

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


@given(RINGS)
def test_the_ring_is_the_fewest_whole_granules_that_hold_a_window_and_a_chunk(ring: Ring) -> None:
    needed = (ring.window_tokens + ring.chunk_tokens - 1) * ring.stride_bytes
    assert (ring.windows - 1) * ring.granule_bytes < needed <= ring.windows * ring.granule_bytes


def test_gemma3_270m_needs_one_ring_of_180_granules() -> None:
    ring = Ring.of(GroupLayout(GEMMA_SLIDING, Layout.TOKEN_MAJOR, 2), chunk_tokens=256, granule_bytes=64 * KIB)
    assert (ring.stride_bytes, ring.windows) == (15 * KIB, 180)


def test_a_group_that_keeps_every_token_has_no_ring() -> None:
    layout = GroupLayout(replace(GEMMA_SLIDING, window_tokens=None), Layout.TOKEN_MAJOR, 2)
    with pytest.raises(ValueError, match="has no ring"):
        Ring.of(layout, chunk_tokens=256, granule_bytes=64 * KIB)


@pytest.mark.parametrize("broken", [(0, 1, 1, 1), (1, 0, 1, 1), (1, 1, 0, 1), (1, 1, 1, 0)])
def test_a_ring_without_window_chunk_stride_or_granule_is_refused(broken: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Ring(*broken)
