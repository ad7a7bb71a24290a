"""Rings and snapshots in a shape: a count over every byte of every token, and never more than without them."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvcluster.geometry.layout import GroupLayout, Layout, group_layouts
from kvcluster.geometry.model import KvGeometry, LayerGroup
from kvcluster.geometry.residency import GroupShape, Keeps, RangeMap, Shape
from kvcluster.units import KIB
from tests.geometry.brute_force import GRANULES, LAYOUTS, bytes_of, geometries, granules_filled, granules_touched

TOKENS = st.integers(0, 30)
CHUNKS = st.integers(1, 6)
SLIDING = geometries(windows=True)

GEMMA_FULL = (5, 11, 17)
GEMMA = KvGeometry(
    (
        LayerGroup(GEMMA_FULL, kv_heads=1, head_dim=256),
        LayerGroup(tuple(layer for layer in range(18) if layer not in GEMMA_FULL), 1, 256, window_tokens=512),
    ),
    element_bytes=2,
)


def keeping_everything(geometry: KvGeometry) -> KvGeometry:
    groups = tuple(LayerGroup(g.layers, g.kv_heads, g.head_dim) for g in geometry.groups)
    return KvGeometry(groups, geometry.element_bytes)


def folded(group: GroupLayout, tokens: range, ring_bytes: int) -> list[set[int]]:
    """The bytes that `tokens` occupy in the ring of each fragment, whichever address they are reached through."""
    return [{byte % ring_bytes for byte in occupied} for occupied in bytes_of(group, tokens)]


@given(SLIDING, LAYOUTS, GRANULES, CHUNKS, TOKENS)
def test_a_rings_windows_are_the_granules_that_tokens_have_touched_in_it(
    geometry: KvGeometry, layout: Layout, granule_bytes: int, chunk_tokens: int, tokens: int
) -> None:
    shape = Shape.of(geometry, layout, granule_bytes, chunk_tokens=chunk_tokens)
    for number, group in enumerate(group_layouts(geometry, layout)):
        if group.group.window_tokens is not None:
            ring_bytes = shape.groups[number].windows * granule_bytes
            for occupied in folded(group, range(tokens), ring_bytes):
                assert granules_touched(occupied, granule_bytes) == set(range(shape.windows(tokens)[number]))


@given(SLIDING, LAYOUTS, GRANULES, CHUNKS, st.integers(0, 30), st.data())
def test_no_byte_that_a_step_sees_or_writes_is_used_twice(
    geometry: KvGeometry, layout: Layout, granule_bytes: int, chunk_tokens: int, start: int, data: st.DataObject
) -> None:
    shape = Shape.of(geometry, layout, granule_bytes, chunk_tokens=chunk_tokens)
    stop = start + data.draw(st.integers(1, chunk_tokens))
    for number, group in enumerate(group_layouts(geometry, layout)):
        if (window := group.group.window_tokens) is not None:
            live = range(max(0, start + 1 - window), stop)
            ring_bytes = shape.groups[number].windows * granule_bytes
            for occupied in folded(group, live, ring_bytes):
                assert len(occupied) == len(live) * group.stride_bytes


@given(SLIDING, LAYOUTS, GRANULES, CHUNKS, TOKENS)
def test_a_ring_never_takes_more_than_keeping_every_token(
    geometry: KvGeometry, layout: Layout, granule_bytes: int, chunk_tokens: int, tokens: int
) -> None:
    shape = Shape.of(geometry, layout, granule_bytes, chunk_tokens=chunk_tokens)
    without = Shape.of(keeping_everything(geometry), layout, granule_bytes)
    for group, windows in enumerate(without.windows(tokens)):
        assert shape.windows(tokens)[group] <= windows
    assert shape.committed_bytes(tokens) <= without.committed_bytes(tokens)
    assert geometry.live_bytes(tokens) <= shape.committed_bytes(tokens)


@given(SLIDING, LAYOUTS, GRANULES, CHUNKS, st.integers(1, 30))
def test_a_ring_is_mapped_twice_only_where_it_goes_on_beyond_its_first_lap(
    geometry: KvGeometry, layout: Layout, granule_bytes: int, chunk_tokens: int, max_tokens: int
) -> None:
    whole = RangeMap(Shape.of(geometry, layout, granule_bytes, chunk_tokens=chunk_tokens), max_tokens)
    for number, group in enumerate(group_layouts(geometry, layout)):
        goes_on = group.group.window_tokens is not None and max_tokens * group.stride_bytes > whole.ring_bytes(number)
        assert whole.copies(number) == (2 if goes_on else 1)


@given(SLIDING, LAYOUTS, GRANULES, CHUNKS)
def test_each_ring_has_a_snapshot_that_holds_its_window_and_no_whole_granule_more(
    geometry: KvGeometry, layout: Layout, granule_bytes: int, chunk_tokens: int
) -> None:
    shape = Shape.of(geometry, layout, granule_bytes, chunk_tokens=chunk_tokens)
    rings = [number for number, group in enumerate(geometry.groups) if group.window_tokens is not None]
    assert [ring for ring, _ in shape.snapshots()] == rings
    assert [snapshot for _, snapshot in shape.snapshots()] == list(range(len(geometry.groups), len(shape.groups)))
    assert shape.has_rings == bool(rings)
    for ring, snapshot in shape.snapshots():
        of, kept = shape.groups[ring], shape.groups[snapshot]
        window_bytes = (geometry.groups[ring].window_tokens or 0) * of.stride_bytes
        assert (kept.fragments, kept.stride_bytes, kept.keeps) == (of.fragments, of.stride_bytes, Keeps.SNAPSHOT)
        assert 0 <= kept.windows * granule_bytes - window_bytes < granule_bytes


@given(SLIDING, LAYOUTS, GRANULES, TOKENS)
def test_snapshots_hold_nothing_until_they_are_all_there(
    geometry: KvGeometry, layout: Layout, granule_bytes: int, tokens: int
) -> None:
    shape = Shape.of(geometry, layout, granule_bytes)
    without, full = shape.windows(tokens), shape.with_snapshots(shape.windows(tokens))
    for number, group in enumerate(shape.groups):
        kept = group.keeps is Keeps.SNAPSHOT
        assert (without[number], full[number]) == ((0, group.windows) if kept else (full[number], without[number]))


@given(SLIDING, LAYOUTS, GRANULES, TOKENS)
def test_a_prefix_shares_the_granules_without_a_foreign_byte_and_every_snapshot(
    geometry: KvGeometry, layout: Layout, granule_bytes: int, tokens: int
) -> None:
    shape = Shape.of(geometry, layout, granule_bytes)
    shared = shape.shared_windows(tokens)
    for number, group in enumerate(group_layouts(geometry, layout)):
        if group.group.window_tokens is not None:
            assert shared[number] == 0
        else:
            for occupied in bytes_of(group, range(tokens)):
                assert granules_filled(occupied, granule_bytes) == set(range(shared[number]))
    for _, snapshot in shape.snapshots():
        assert shared[snapshot] == shape.groups[snapshot].windows


@given(SLIDING, LAYOUTS, GRANULES, st.integers(1, 30))
def test_a_joiner_begins_where_the_first_token_is_that_is_not_shared_whole(
    geometry: KvGeometry, layout: Layout, granule_bytes: int, tokens: int
) -> None:
    shape = Shape.of(geometry, layout, granule_bytes)
    full = [group for group in group_layouts(geometry, layout) if group.group.window_tokens is None]
    assume(full)
    shared = [granules_filled(occupied, granule_bytes) for g in full for occupied in bytes_of(g, range(tokens))]

    def is_there(token: int) -> bool:
        rows = [row for group in full for row in bytes_of(group, range(token, token + 1))]
        return all(granules_touched(row, granule_bytes) <= whole for row, whole in zip(rows, shared, strict=True))

    begins = next((token for token in range(tokens) if not is_there(token)), tokens)
    assert shape.reusable_tokens(shape.shared_windows(tokens), tokens) == min(begins, tokens - 1)


def test_rings_alone_leave_nothing_to_begin_with() -> None:
    shape = Shape.of(KvGeometry((LayerGroup((0,), 1, 4, window_tokens=3),), 1), Layout.TOKEN_MAJOR, 16)
    assert shape.reusable_tokens(shape.shared_windows(9), 9) == 0


@pytest.mark.parametrize("layout", Layout)
def test_gemma3_270m_at_4096_tokens_holds_at_most_35_percent_of_what_every_token_would(layout: Layout) -> None:
    shape = Shape.of(GEMMA, layout, 64 * KIB, chunk_tokens=256)
    everything = Shape.of(KvGeometry.uniform(layers=18, kv_heads=1, head_dim=256, element_bytes=2), layout, 64 * KIB)
    assert shape.committed_bytes(4_096) / everything.committed_bytes(4_096) <= 0.35


def test_two_groups_of_layers_cost_at_most_a_granule_more_than_one_before_the_ring_is_full() -> None:
    shape = Shape.of(GEMMA, Layout.TOKEN_MAJOR, 64 * KIB, chunk_tokens=256)
    one = Shape.of(
        KvGeometry.uniform(layers=18, kv_heads=1, head_dim=256, element_bytes=2), Layout.TOKEN_MAJOR, 64 * KIB
    )
    extra = [shape.committed_bytes(tokens) - one.committed_bytes(tokens) for tokens in range(1, 5_000)]
    assert max(extra) == 64 * KIB
    assert max(extra[800:]) < 0


@pytest.mark.parametrize(
    ("keeps", "windows"), [(Keeps.EVERY, 1), (Keeps.RING, 0), (Keeps.SNAPSHOT, 0), (Keeps.RING, -1), (Keeps.EVERY, -1)]
)
def test_a_fixed_number_of_windows_goes_with_rings_and_snapshots_only(keeps: Keeps, windows: int) -> None:
    with pytest.raises(ValueError, match="fixed number of windows"):
        GroupShape(1, 1, keeps, windows)
