"""A plan's figures are those of the shapes that a device is opened with, and what fits is what adds up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcluster.geometry.layout import Layout
from kvcluster.geometry.model import KvGeometry, LayerGroup
from kvcluster.geometry.residency import Shape
from kvcluster.services.plan import Fit, LayoutPlan, PlanSpec, plan
from kvcluster.units import GIB, KIB, MIB
from tests.geometry.brute_force import geometries

GEMMA = KvGeometry(
    (
        LayerGroup(tuple(n for n in range(18) if n not in (5, 11, 17)), 1, 256, window_tokens=512),
        LayerGroup((5, 11, 17), 1, 256),
    ),
    2,
)
LARGE = KvGeometry.uniform(layers=48, kv_heads=8, head_dim=128, element_bytes=2)


@st.composite
def specs(draw: st.DrawFn) -> PlanSpec:
    context = draw(st.integers(1, 40))
    sizes = st.integers(1, 96), st.integers(1, 4_000), st.integers(1, 8)
    return PlanSpec(context, draw(st.integers(1, context)), *map(draw, sizes))


@given(geometries(windows=True), specs())
def test_every_length_commits_whole_granules_and_at_least_what_is_live(geometry: KvGeometry, spec: PlanSpec) -> None:
    for each in plan(geometry, spec).layouts:
        assert [at.tokens for at in each.residency] == list(spec.lengths)
        for at in each.residency:
            assert at.committed_bytes == at.windows * spec.granule_bytes
            assert geometry.live_bytes(at.tokens) == at.live_bytes <= at.committed_bytes


@given(geometries(windows=True), specs())
def test_one_request_more_than_fit_alone_does_not_fit(geometry: KvGeometry, spec: PlanSpec) -> None:
    for each in plan(geometry, spec).layouts:
        alone, one = each.fit.alone, each.residency[-1].committed_bytes
        usable_bytes = spec.memory_bytes // spec.granule_bytes * spec.granule_bytes
        assert alone * one <= usable_bytes < (alone + 1) * one


@given(geometries(windows=True), specs())
def test_one_request_more_than_fit_with_a_shared_prefix_does_not_fit(geometry: KvGeometry, spec: PlanSpec) -> None:
    for each in plan(geometry, spec).layouts:
        if each.fit.can_share and each.fit.sharing is not None:
            usable_bytes = spec.memory_bytes // spec.granule_bytes * spec.granule_bytes
            fits = each.fit.sharing
            assert not fits or held_together(geometry, each, spec, fits) <= usable_bytes
            assert held_together(geometry, each, spec, fits + 1) > usable_bytes


def held_together(geometry: KvGeometry, each: LayoutPlan, spec: PlanSpec, requests: int) -> int:
    """Bytes of so many requests, window by window: shared ones once, snapshots once, the rest for each."""
    shape = Shape.of(geometry, each.layout, spec.granule_bytes, chunk_tokens=spec.chunk_tokens)
    windows, shared = shape.windows(spec.context_tokens), shape.shared_windows(spec.prefix_tokens)
    own = [max(0, count - once) for count, once in zip(windows, shared, strict=True)]
    each_its_own = requests * shape.window_count(tuple(own))
    return spec.granule_bytes * (each_its_own + shape.window_count(shared))


@given(geometries(), specs())
def test_sharing_never_fits_fewer_than_keeping_a_copy_each(geometry: KvGeometry, spec: PlanSpec) -> None:
    for each in plan(geometry, spec).layouts:
        assert each.fit.sharing is None or each.fit.sharing >= each.fit.alone


def test_a_prefix_that_is_the_whole_request_lets_any_number_in_where_one_fits() -> None:
    geometry = KvGeometry.uniform(layers=1, kv_heads=1, head_dim=16, element_bytes=2)  # 64 bytes a token
    assert token_major(geometry, PlanSpec(64, 64, 4 * KIB, 4 * KIB)).fit == Fit(1, True, None)
    assert token_major(geometry, PlanSpec(64, 64, 4 * KIB, 1 * KIB)).fit == Fit(0, True, 0)


@given(geometries(windows=True), specs())
def test_where_a_prefix_cannot_be_shared_as_many_fit_as_alone(geometry: KvGeometry, spec: PlanSpec) -> None:
    for each in plan(geometry, spec).layouts:
        assert each.fit.can_share is each.sharing.shareable
        assert each.fit.can_share or each.fit.sharing == each.fit.alone


def test_gemma_keeps_three_kibibytes_a_token_and_one_ring_of_eleven_mebibytes() -> None:
    found = plan(GEMMA, PlanSpec(4_096, 1_024, 64 * KIB, GIB))
    assert (found.token_bytes, found.kept_bytes) == (18 * KIB, 3 * KIB)
    [flat, *_] = found.layouts
    assert (flat.fragments, flat.ring_fragments) == (2, 1)
    assert flat.ring_bytes == 180 * 64 * KIB
    assert flat.residency[-1].committed_bytes == flat.ring_bytes + 4_096 * 3 * KIB
    assert flat.residency[-1].live_bytes == 512 * 15 * KIB + 4_096 * 3 * KIB


def test_a_boundary_of_a_model_with_rings_takes_a_snapshot_of_every_window() -> None:
    flat = token_major(GEMMA, PlanSpec(4_096, 1_024, 64 * KIB, GIB))
    assert flat.snapshot_bytes == 512 * 15 * KIB
    assert (flat.sharing.multi_map_ops, flat.sharing.reusable_tokens) == (48, 1_023)
    plain = token_major(LARGE, PlanSpec(4_096, 1_024, 64 * KIB, GIB))
    assert (plain.ring_fragments, plain.ring_bytes, plain.snapshot_bytes) == (0, 0, 0)


@pytest.mark.parametrize(
    ("layout", "fragments", "refused_tokens"),
    [(Layout.HEAD_MAJOR, 768, 8_191), (Layout.SEQ_MAJOR, 96, 1_023), (Layout.TOKEN_MAJOR, 1, 10)],
)
def test_forty_eight_layers_commit_a_granule_a_fragment_for_the_first_token(
    layout: Layout, fragments: int, refused_tokens: int
) -> None:
    found = plan(LARGE, PlanSpec(32_768, refused_tokens, 2 * MIB, 80 * GIB))
    [each] = [each for each in found.layouts if each.layout is layout]
    assert (each.fragments, each.residency[0].committed_bytes) == (fragments, fragments * 2 * MIB)
    assert not each.fit.can_share
    assert each.fit.sharing == each.fit.alone > 0


@pytest.mark.parametrize("figures", [(0, 0, 1, 1), (4, 5, 1, 1), (4, 0, 1, 1), (4, 4, 0, 1), (4, 4, 1, 0)])
def test_an_impossible_plan_is_wrong_use(figures: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match=r"at least 1|is longer than"):
        PlanSpec(*figures)


def token_major(geometry: KvGeometry, spec: PlanSpec) -> LayoutPlan:
    [found] = [each for each in plan(geometry, spec).layouts if each.layout is Layout.TOKEN_MAJOR]
    return found
