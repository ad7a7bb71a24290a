"""The slow truth: every byte of every token, one by one, from `GroupLayout.place`. No closed form."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import strategies as st

from kvcluster.geometry.layout import GroupLayout, Layout, Side
from kvcluster.geometry.model import KvGeometry, LayerGroup

GRANULES = st.integers(1, 96)
LAYOUTS = st.sampled_from(Layout)


@st.composite
def geometries(draw: st.DrawFn, windows: bool = False) -> KvGeometry:
    """One to three groups of up to four layers in all; with `windows`, some of them may slide."""
    layers = draw(st.integers(1, 4))
    group_of = draw(st.lists(st.integers(0, 2), min_size=layers, max_size=layers))
    window = st.none() | st.integers(1, 12) if windows else st.none()
    groups = tuple(
        LayerGroup(
            tuple(layer for layer in range(layers) if group_of[layer] == number),
            draw(st.integers(1, 3)),
            draw(st.integers(1, 4)),
            draw(window),
        )
        for number in sorted(set(group_of))
    )
    return KvGeometry(groups, draw(st.sampled_from((1, 2, 4))))


def vector_places(layout: GroupLayout) -> Iterator[tuple[int, range]]:
    """For each K or V vector of a token: its fragment, and its bytes within the row."""
    size = layout.group.head_dim * layout.element_bytes
    for layer in range(len(layout.group.layers)):
        for side in Side:
            for head in range(layout.group.kv_heads):
                place = layout.place(layer, side, head)
                yield place.fragment, range(place.offset_bytes, place.offset_bytes + size)


def bytes_of(layout: GroupLayout, tokens: range) -> list[set[int]]:
    """The offsets that `tokens` occupy in each fragment, from its start."""
    occupied: list[set[int]] = [set() for _ in range(layout.fragments)]
    for fragment, row in vector_places(layout):
        for token in tokens:
            start = token * layout.stride_bytes
            occupied[fragment].update(range(start + row.start, start + row.stop))
    return occupied


def granules_touched(occupied: set[int], granule_bytes: int) -> set[int]:
    return {offset // granule_bytes for offset in occupied}


def granules_filled(occupied: set[int], granule_bytes: int) -> set[int]:
    """Granules of which every byte is occupied."""
    touched = granules_touched(occupied, granule_bytes)
    return {g for g in touched if all(g * granule_bytes + i in occupied for i in range(granule_bytes))}
