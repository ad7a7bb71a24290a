"""What is mapped where in one address range, in windows: the rules and the record, without a driver call.

Joins two views of the same bytes: runs of windows, which owner and user speak of, and spans of address filled by
whole handles, which the driver speaks of. A run of a ring that goes on is two spans with the same handles, or one
that is twice as long where it is the whole ring: the second copy follows the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from kvcluster.driver.protocol import PhysicalHandle
from kvcluster.geometry.residency import RangeMap
from kvcluster.ids import WindowRun
from kvcluster.mapping.cells import Cells, Stretch, cells_of
from kvcluster.mapping.supply import Supply


class Span(NamedTuple):
    """[address, address + size_bytes), filled by whole handles; `handles` only where they are about to be mapped.

    A tuple, as Placement is, because one is made for every run of every commit.
    """

    run: WindowRun
    stretch: Stretch
    address: int
    size_bytes: int
    handles: tuple[PhysicalHandle, ...] = ()


class Placement(NamedTuple):
    """One run and what an unmap or a set_access of it takes, one call a span."""

    run: WindowRun
    spans: tuple[Span, ...]


class Placements:
    """The record of one address range that begins at `address`."""

    def __init__(self, address: int, range_map: RangeMap) -> None:
        self._address = address
        self._range_map = range_map
        self._granule_bytes = range_map.shape.granule_bytes
        self._cells: dict[tuple[int, int], Cells] = {}
        self._mapped_windows = 0

    @property
    def mapped_bytes(self) -> int:
        """A window counts once, at however many addresses it is mapped."""
        return self._mapped_windows * self._granule_bytes

    def mapped_runs(self) -> tuple[WindowRun, ...]:
        """What is mapped, in window order, in as few runs as possible."""
        return tuple(
            WindowRun(*fragment, run.start, run.stop - run.start)
            for fragment, cells in sorted(self._cells.items())
            for run in cells.runs()
        )

    def mapped_within(self, runs: Sequence[WindowRun]) -> tuple[WindowRun, ...]:
        """What is mapped of `runs`."""
        return tuple(
            WindowRun(run.group, run.fragment, found.start, found.stop - found.start)
            for run in runs
            for found in self._cells_of(run).runs(run.start, run.count)
        )

    def mapped_behind(self, windows: Sequence[int]) -> tuple[WindowRun, ...]:
        """What is mapped behind the first `windows` of each fragment, a group at a time; whole handles alone."""
        return tuple(
            WindowRun(group, fragment, run.start, run.stop - run.start)
            for (group, fragment), cells in sorted(self._cells.items())
            for run in cells.runs_behind(windows[group])
        )

    def plan(self, runs: Sequence[WindowRun], handles: Sequence[PhysicalHandle]) -> tuple[Placement, ...]:
        """Where `handles` go, in order, if they fill the vacant `runs` exactly. Nothing is recorded.

        Raises:
            ValueError: they do not, or runs overlap, leave the range, or are mapped already.
        """
        supply = Supply(handles)
        placements = tuple([self._filled(run, supply) for run in runs])
        if not supply.is_empty:
            raise ValueError("there are more handles than the runs need")
        _check_disjoint(runs)
        return placements

    def find(self, runs: Sequence[WindowRun]) -> tuple[Placement, ...]:
        """What is mapped in `runs`.

        Raises:
            ValueError: runs overlap, leave the range, or are not filled by whole handles.
        """
        placements = tuple([self._found(run) for run in runs])
        _check_disjoint(runs)
        return placements

    def record(self, span: Span, count: int | None = None) -> None:
        """The handles of a planned span are mapped now, or the first `count` of them."""
        windows = [handle.size_bytes // self._granule_bytes for handle in span.handles[:count]]
        self._mapped_windows += self._cells_of(span.run).occupy(span.stretch.start, cells_of(windows))

    def strike(self, span: Span) -> None:
        """A found span is mapped no longer."""
        self._mapped_windows -= self._cells_of(span.run).vacate(span.stretch)

    def _filled(self, run: WindowRun, supply: Supply) -> Placement:
        address, cells = self._fragment_address(run), self._cells_of(run)
        stretches = cells.stretches(run.start, run.count)
        if not all(cells.is_vacant(stretch) for stretch in stretches):
            raise ValueError(f"{run} cannot be mapped: something is mapped there already")
        mine = self._handles_for(run, supply)
        spans = []
        for stretch in stretches:
            copies = (stretch.stop - stretch.start) // run.count
            spans.append(self._span(run, stretch, address, mine * copies))
        return Placement(run, tuple(spans))

    def _handles_for(self, run: WindowRun, supply: Supply) -> tuple[PhysicalHandle, ...]:
        granule_bytes, before = self._granule_bytes, supply.given_bytes
        mine = tuple(supply.next(run.count * granule_bytes))
        is_exact = supply.given_bytes - before == run.count * granule_bytes
        if not is_exact or {handle.size_bytes % granule_bytes for handle in mine} != {0}:
            raise ValueError(f"the handles do not fill {run} exactly")
        return mine

    def _found(self, run: WindowRun) -> Placement:
        address = self._fragment_address(run)
        stretches = self._cells_of(run).filled(run.start, run.count)
        if not stretches:
            raise ValueError(f"{run} cannot be unmapped: it is not filled by whole mappings")
        return Placement(run, tuple([self._span(run, stretch, address) for stretch in stretches]))

    def _span(
        self, run: WindowRun, stretch: Stretch, fragment_address: int, handles: tuple[PhysicalHandle, ...] = ()
    ) -> Span:
        start, stop = stretch
        granule_bytes = self._granule_bytes
        return Span(run, stretch, fragment_address + start * granule_bytes, (stop - start) * granule_bytes, handles)

    def _fragment_address(self, run: WindowRun) -> int:
        """Raises ValueError where the run leaves the range."""
        return self._address + self._range_map.run_offset_bytes(run) - run.start * self._granule_bytes

    def _cells_of(self, run: WindowRun) -> Cells:
        fragment = (run.group, run.fragment)
        cells = self._cells.get(fragment)
        if cells is None:
            copies, windows = self._range_map.copies(run.group), self._range_map.most_windows(run.group)
            cells = self._cells[fragment] = Cells(windows if copies > 1 else 0)
        return cells


def _check_disjoint(runs: Sequence[WindowRun]) -> None:
    if len({(run.group, run.fragment) for run in runs}) == len(runs):
        return
    for before, after in pairwise(sorted(runs)):
        if (before.group, before.fragment) == (
            after.group,
            after.fragment,
        ) and before.start + before.count > after.start:
            raise ValueError(f"{before} and {after} overlap")
