"""Topping up a model with rings: whoever still keeps every token decides, and full rings need nothing more."""

from __future__ import annotations

import sys

from hypothesis import given
from hypothesis import strategies as st

from kvcluster.geometry.residency import GroupShape, Keeps, Shape
from kvcluster.services.request.margin import margin_at, topped_up_tokens

STRIDES = st.integers(1, 300)
GRANULES = st.sampled_from([64, 256])
MOST = 10_000
EVERY = st.builds(GroupShape, st.integers(1, 3), STRIDES)
RING = st.builds(GroupShape, st.integers(1, 3), STRIDES, st.just(Keeps.RING), st.integers(1, 9))
SNAPSHOT = st.builds(GroupShape, st.integers(1, 3), STRIDES, st.just(Keeps.SNAPSHOT), st.integers(1, 9))
SHAPES = st.builds(Shape, st.lists(EVERY | RING | SNAPSHOT, min_size=1, max_size=4).map(tuple), GRANULES)


@given(SHAPES, st.integers(0, 500), st.integers(1, 40))
def test_no_group_gets_a_granule_that_the_margin_would_only_begin(shape: Shape, length: int, margin: int) -> None:
    tokens = topped_up_tokens(shape, length, MOST, margin)
    assert length + 2 <= tokens <= MOST
    needed, filled = shape.windows(length + 2), shape.whole_windows(length + margin)
    if tokens < MOST or shape.tokens_in(filled) < sys.maxsize:
        for taken, *allowed in zip(shape.windows(tokens), needed, filled, strict=True):
            assert taken <= max(allowed)


@given(SHAPES, STRIDES, st.integers(0, 500), st.integers(1, 40))
def test_a_ring_that_is_full_changes_nothing_for_the_others(
    shape: Shape, stride: int, length: int, margin: int
) -> None:
    full = GroupShape(2, stride, Keeps.RING, windows=1)
    length += shape.granule_bytes // stride + 1
    with_ring = Shape((full, *shape.groups), shape.granule_bytes)
    assert topped_up_tokens(with_ring, length, MOST, margin) == topped_up_tokens(shape, length, MOST, margin)


def test_a_model_whose_every_group_is_a_full_ring_is_given_all_that_it_will_ever_hold() -> None:
    shape = Shape((GroupShape(1, 64, Keeps.RING, 2), GroupShape(1, 64, Keeps.SNAPSHOT, 1)), 128)
    assert topped_up_tokens(shape, 4, MOST, margin=1) == MOST
    assert shape.windows(MOST) == shape.windows(4) == (2, 0)
    assert topped_up_tokens(shape, 1, MOST, margin=1) == 3


@given(st.integers(1, 100))
def test_a_long_sequence_has_half_a_margin_more(margin: int) -> None:
    assert margin_at(8 * margin - 1, margin) == margin
    assert margin_at(8 * margin, margin) == margin + margin // 2
