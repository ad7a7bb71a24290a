"""What is mapped where in one address range, in windows: the rules and the record, without a driver call.

Joins two views of the same bytes: runs of windows, which owner and user speak of, and the whole handles on a
`Shelf`, which the driver speaks of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kvcluster.driver.books import Piece, RuleBroken, Shelf
from kvcluster.driver.protocol import PhysicalHandle
from kvcluster.geometry.residency import RangeMap
from kvcluster.ids import WindowRun


@dataclass(frozen=True, slots=True)
class Placement:
    """One run and the handles that fill it, each at its address."""

    run: WindowRun
    pieces: tuple[Piece, ...]

    @property
    def address(self) -> int:
        return self.pieces[0].address

    @property
    def size_bytes(self) -> int:
        return self.pieces[-1].end - self.address

    def handles(self) -> Iterator[tuple[int, PhysicalHandle]]:
        """Each handle after its address."""
        return ((piece.address, piece.owner) for piece in self.pieces)


class Placements:
    """The record of one address range that begins at `address`."""

    def __init__(self, address: int, range_map: RangeMap) -> None:
        self._address = address
        self._range_map = range_map
        self._shelf = Shelf(address, range_map.size_bytes)

    @property
    def mapped_bytes(self) -> int:
        return sum(piece.size_bytes for piece in self._shelf.pieces())

    def mapped_runs(self) -> tuple[WindowRun, ...]:
        """What is mapped, in window order, in as few runs as possible."""
        joined: list[WindowRun] = []
        for run in self._windows():
            if joined and _follows(joined[-1], run):
                run = WindowRun(run.group, run.fragment, joined[-1].start, joined.pop().count + run.count)
            joined.append(run)
        return tuple(joined)

    def plan(self, runs: Sequence[WindowRun], handles: Sequence[PhysicalHandle]) -> tuple[Placement, ...]:
        """Where `handles` go, in order, if they fill the vacant `runs` exactly. Nothing is recorded.

        Raises:
            ValueError: they do not, or runs overlap, leave the range, or are mapped already.
        """
        remaining = iter(handles)
        placements = tuple(self._filled(run, remaining) for run in runs)
        if next(remaining, None) is not None:
            raise ValueError("there are more handles than the runs need")
        return _disjoint(placements)

    def find(self, runs: Sequence[WindowRun]) -> tuple[Placement, ...]:
        """What is mapped in `runs`.

        Raises:
            ValueError: runs overlap, leave the range, or are not filled by whole handles.
        """
        return _disjoint(tuple(self._found(run) for run in runs))

    def record(self, placement: Placement, count: int) -> None:
        """The first `count` handles of a planned placement are mapped now."""
        for piece in placement.pieces[:count]:
            self._shelf.occupy(self._shelf.vacancy(piece.address, piece.size_bytes), piece)

    def strike(self, placement: Placement) -> None:
        """A found placement is mapped no longer."""
        self._shelf.vacate(placement.pieces)

    def _filled(self, run: WindowRun, handles: Iterator[PhysicalHandle]) -> Placement:
        here = address = self._address + self._range_map.run_offset_bytes(run)
        end = address + self._bytes_of(run)
        try:
            self._shelf.vacancy(address, end - address)
        except RuleBroken as broken:
            raise ValueError(f"{run} cannot be mapped: {broken}") from broken
        pieces: list[Piece] = []
        while here < end:
            handle = next(handles, None)
            if handle is None or handle.size_bytes > end - here or handle.size_bytes % self._granule_bytes:
                raise ValueError(f"the handles do not fill {run} exactly")
            pieces.append(Piece(here, handle.size_bytes, handle))
            here += handle.size_bytes
        return Placement(run, tuple(pieces))

    def _found(self, run: WindowRun) -> Placement:
        address = self._address + self._range_map.run_offset_bytes(run)
        try:
            return Placement(run, self._shelf.filled(address, self._bytes_of(run)))
        except RuleBroken as broken:
            raise ValueError(f"{run} cannot be unmapped: {broken}") from broken

    def _windows(self) -> Iterator[WindowRun]:
        """One run a handle, in window order, which is address order."""
        pieces = iter(self._shelf.pieces())
        piece = next(pieces, None)
        for group, shape in enumerate(self._range_map.shape.groups):
            for fragment in range(shape.fragments):
                start = self._address + self._range_map.fragment_offset_bytes(group, fragment)
                end = start + self._range_map.fragment_pitch_bytes(group)
                while piece is not None and piece.address < end:
                    first = (piece.address - start) // self._granule_bytes
                    yield WindowRun(group, fragment, first, piece.size_bytes // self._granule_bytes)
                    piece = next(pieces, None)

    def _bytes_of(self, run: WindowRun) -> int:
        return run.count * self._granule_bytes

    @property
    def _granule_bytes(self) -> int:
        return self._range_map.shape.granule_bytes


def _follows(before: WindowRun, after: WindowRun) -> bool:
    same_fragment = (before.group, before.fragment) == (after.group, after.fragment)
    return same_fragment and before.start + before.count == after.start


def _disjoint(placements: tuple[Placement, ...]) -> tuple[Placement, ...]:
    in_order = sorted(placements, key=lambda placement: placement.address)
    for before, after in pairwise(in_order):
        if before.address + before.size_bytes > after.address:
            raise ValueError(f"{before.run} and {after.run} overlap")
    return placements
