"""Cells against a plain dict of what is mapped at which address."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvcluster.mapping.cells import Cells, Stretch, cells_of
from tests.examples import examples

MOST = 8
RING = 4


class CellsMachine(RuleBasedStateMachine):
    """The model: by cell, the number of the handle that covers it; handles are numbered as they come."""

    @initialize(ring=st.sampled_from((0, RING)))
    def begin(self, ring: int) -> None:
        self.ring = ring
        self.windows = ring or MOST
        self.cells = Cells(ring)
        self.mapped = 0
        self.model: dict[int, int] = {}
        self.handles = 0

    @rule(data=st.data())
    def occupy(self, data: st.DataObject) -> None:
        stretch = self._drawn(data)
        vacant = not any(cell in self.model for cell in range(*stretch))
        assert self.cells.is_vacant(stretch) == vacant
        if not vacant:
            return
        sizes = data.draw(_parts(stretch.stop - stretch.start))
        self.mapped += self.cells.occupy(stretch.start, cells_of(sizes))
        at = stretch.start
        for size in sizes:
            self.model.update(dict.fromkeys(range(at, at + size), self.handles))
            self.handles += 1
            at += size

    @rule(data=st.data())
    def vacate(self, data: st.DataObject) -> None:
        start = data.draw(st.integers(0, self.windows - 1))
        count = data.draw(st.integers(1, self.windows - start))
        cells = [cell for stretch in self.cells.stretches(start, count) for cell in range(*stretch)]
        inside = {self.model[cell] for cell in cells if cell in self.model}
        whole = all(cell in cells for cell, handle in self.model.items() if handle in inside)
        every = all(self._window(number) for number in range(start, start + count))
        found = self.cells.filled(start, count)
        assert bool(found) == (whole and every)
        if found:
            assert [cell for stretch in found for cell in range(*stretch)] == [c for c in cells if c in self.model]
            self.mapped -= sum(self.cells.vacate(stretch) for stretch in found)
            self.model = {cell: handle for cell, handle in self.model.items() if cell not in cells}

    @precondition(lambda self: self.model and self.ring)
    @rule(data=st.data())
    def lose_a_copy(self, data: st.DataObject) -> None:
        """What an unmap leaves behind that failed at the other address."""
        handle = data.draw(st.sampled_from(sorted(set(self.model.values()))))
        cells = [cell for cell, owner in self.model.items() if owner == handle]
        self.mapped -= self.cells.vacate(Stretch(cells[0], cells[-1] + 1))
        self.model = {cell: owner for cell, owner in self.model.items() if owner != handle}

    @invariant()
    def the_windows_are_the_models(self) -> None:
        runs = list(self.cells.runs())
        assert [number for run in runs for number in range(*run)] == [n for n in range(self.windows) if self._window(n)]
        assert all(one.stop < other.start for one, other in itertools.pairwise(runs))
        assert self.mapped == sum(self._window(number) for number in range(self.windows))
        within = [number for run in self.cells.runs(1, 2) for number in range(*run)]
        assert within == [number for number in (1, 2) if self._window(number)]

    def _window(self, number: int) -> bool:
        return number in self.model or (bool(self.ring) and number + self.ring in self.model)

    def _drawn(self, data: st.DataObject) -> Stretch:
        start = data.draw(st.integers(0, self.windows - 1))
        count = data.draw(st.integers(1, self.windows - start))
        return data.draw(st.sampled_from(self.cells.stretches(start, count)))


@st.composite
def _parts(draw: st.DrawFn, total: int) -> list[int]:
    parts = []
    while total:
        parts.append(draw(st.integers(1, total)))
        total -= parts[-1]
    return parts


TestCells = CellsMachine.TestCase
TestCells.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)


@pytest.mark.parametrize(
    ("start", "count", "stretches"),
    [(0, 4, [(0, 8)]), (0, 3, [(0, 3), (4, 7)]), (1, 3, [(1, 4), (5, 8)])],
)
def test_a_rings_windows_are_two_stretches_or_one_where_they_are_the_ring(
    start: int, count: int, stretches: list[tuple[int, int]]
) -> None:
    assert list(Cells(RING).stretches(start, count)) == stretches
