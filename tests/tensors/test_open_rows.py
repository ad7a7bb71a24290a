"""What lies below a sealed end keeps its bytes whatever is written, and everything above it is written."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcluster.geometry.layout import Layout
from kvcluster.geometry.model import KvGeometry
from kvcluster.geometry.residency import RangeMap, Shape
from kvcluster.tensors.open_rows import OpenRows, writable_rows
from kvcluster.tensors.views import KvViews, kv_views
from tests.examples import examples
from tests.tensors.ranges import geometries

GRANULE_BYTES = 256  # its edges fall into rows, and into vectors
MAX_TOKENS = 12
UNTOUCHED = -1
LAYOUTS = st.sampled_from(Layout)
STARTS = st.integers(0, MAX_TOKENS - 1)
slow = settings(deadline=None, max_examples=examples(150))


class Memory:
    """A range of plain memory, and its views when the first `sealed` windows of each group are for reading."""

    def __init__(self, geometry: KvGeometry, layout: Layout) -> None:
        self.range_map = RangeMap(Shape.of(geometry, layout, GRANULE_BYTES), MAX_TOKENS)
        self.elements = torch.full((self.range_map.size_bytes // 4,), UNTOUCHED, dtype=torch.int32)
        self._geometry, self._layout = geometry, layout

    def views(self, sealed: Sequence[int] = ()) -> KvViews:
        address, geometry, layout = self.elements.data_ptr(), self._geometry, self._layout
        return kv_views(address, self.range_map, geometry, layout, tokens=MAX_TOKENS, dtype=torch.int32, sealed=sealed)

    def write(self, start: int, stop: int, sealed: Sequence[int] = ()) -> None:
        """Other numbers into every element of these rows."""
        for group in self.views(sealed).groups:
            _, sides, heads, dim = group.rows.sizes
            size = (sides, heads, stop - start, dim)
            for layer, place in enumerate(writable_rows(group.narrowed(start, stop))):
                numbers = torch.arange(sides * heads * (stop - start) * dim, dtype=torch.int32).view(size)
                place.copy_(numbers + 100_000 * layer)

    def sealed_elements(self, sealed: Sequence[int]) -> torch.Tensor:
        """Which elements lie in the first `sealed` windows of each fragment."""
        found = torch.zeros(len(self.elements), dtype=torch.bool)
        for group, windows in enumerate(sealed):
            for fragment in range(self.range_map.shape.groups[group].fragments):
                start = self.range_map.fragment_offset_bytes(group, fragment) // 4
                found[start : start + windows * GRANULE_BYTES // 4] = True
        return found


def sealed_of(data: st.DataObject, memory: Memory) -> list[int]:
    groups = range(len(memory.range_map.shape.groups))
    return [data.draw(st.integers(0, memory.range_map.most_windows(group))) for group in groups]


@slow
@given(geometries(st.just(False)), LAYOUTS, STARTS, st.data())
def test_every_byte_above_the_sealed_end_is_written_and_none_below(
    geometry: KvGeometry, layout: Layout, start: int, data: st.DataObject
) -> None:
    memory, plain = Memory(geometry, layout), Memory(geometry, layout)
    stop = data.draw(st.integers(start + 1, MAX_TOKENS))
    sealed = sealed_of(data, memory)
    memory.write(start, stop, sealed)
    plain.write(start, stop)
    below = memory.sealed_elements(sealed)
    assert bool((memory.elements[below] == UNTOUCHED).all())
    assert torch.equal(memory.elements[~below], plain.elements[~below])


@slow
@given(geometries(st.just(False)), LAYOUTS, STARTS, st.data())
def test_rows_that_begin_above_every_sealed_end_are_plain_tensors(
    geometry: KvGeometry, layout: Layout, start: int, data: st.DataObject
) -> None:
    memory = Memory(geometry, layout)
    sealed = sealed_of(data, memory)
    for group, windows in zip(memory.views(sealed).groups, sealed, strict=True):
        places = writable_rows(group.narrowed(start, MAX_TOKENS))
        above = windows * GRANULE_BYTES <= start * group.rows.stride * 4
        assert {type(place) for place in places} == {torch.Tensor if above else OpenRows}
        assert len(places) == len(group.layers)


@given(geometries(st.just(False)), LAYOUTS)
def test_a_windows_number_too_many_is_no_groups(geometry: KvGeometry, layout: Layout) -> None:
    memory = Memory(geometry, layout)
    views = memory.views([0] * len(geometry.groups) + [7, 7])  # the snapshots of a shape come behind
    assert [group.rows.sealed for group in views.groups] == [0] * len(geometry.groups)
