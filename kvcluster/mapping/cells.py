"""What is mapped in one fragment: a byte for each granule of its address, so that runs are looked at in C.

A ring's fragment has two cells a window, one for each of its addresses: [0, ring) and [ring, 2 x ring). A window is
mapped while either is. Handles are not kept here, only where each begins: that is what the driver's rule "whole
mappings" asks for.

    cells    1 2 0 1 | 1 2 0 0      ring of 4: a handle of two windows at both addresses, one of one at the first only

With an object for each handle, recording 256 of them took as long as 40 system calls.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_VACANT, _FIRST, _REST = range(3)  # nothing; where a handle begins; the rest of a handle of several granules
_TAKEN = re.compile(rb"[^\0]+")


class Stretch(NamedTuple):
    """Cells [start, stop)."""

    start: int
    stop: int


def cells_of(handle_windows: Sequence[int]) -> bytes:
    """The cells of adjacent handles of so many granules each."""
    if max(handle_windows) == 1:
        return bytes((_FIRST,)) * len(handle_windows)
    return b"".join(bytes((_FIRST, *[_REST] * (windows - 1))) for windows in handle_windows)


class Cells:
    """One fragment; `ring_windows` is 0 where each window has one address."""

    def __init__(self, ring_windows: int) -> None:
        self._ring = ring_windows
        self._cells = bytearray(2 * ring_windows)

    def stretches(self, start: int, count: int) -> tuple[Stretch, ...]:
        """The cells of windows [start, start + count), as few stretches as there are."""
        stop, ring = start + count, self._ring
        if not ring:
            return (Stretch(start, stop),)
        if count == ring:
            return (Stretch(0, 2 * ring),)
        return Stretch(start, stop), Stretch(ring + start, ring + stop)

    def is_vacant(self, stretch: Stretch) -> bool:
        return not self._cells[stretch.start : stretch.stop].strip(b"\0")

    def filled(self, start: int, count: int) -> tuple[Stretch, ...]:
        """The cells of these windows that whole handles fill; () where a window has none, or a handle goes beyond."""
        found = self.stretches(start, count)
        if any(self._has_gap(stretch) for stretch in found):
            if not all(self._windows(start, start + count)):
                return ()
            found = tuple(self._taken(found))  # a ring, some of whose windows lost a copy
        return found if all(self._is_whole(stretch) for stretch in found) else ()

    def occupy(self, start: int, cells: bytes) -> int:
        """Write down handles, from the cell `start` on; returns how many more windows are mapped now."""
        if len(self._cells) < start + len(cells):
            self._cells.extend(bytes(start + len(cells) - len(self._cells)))
        return self._set(start, cells)

    def vacate(self, stretch: Stretch) -> int:
        """Strike out what fills `stretch`; returns how many windows are not mapped any more."""
        return -self._set(stretch.start, bytes(stretch.stop - stretch.start))

    def runs(self, start: int = 0, count: int | None = None) -> Iterator[Stretch]:
        """The mapped windows among [start, start + count) (all of them), as few runs as possible."""
        stop = None if count is None else start + count
        for match in _TAKEN.finditer(self._windows(start, stop)):
            yield Stretch(start + match.start(), start + match.end())

    def runs_behind(self, start: int) -> Iterator[Stretch]:
        """The mapped windows from `start` on, without the rest of a handle that begins before it."""
        while self._cells[start : start + 1] == bytes((_REST,)):
            start += 1
        return self.runs(start)

    def _windows(self, start: int, stop: int | None) -> bytes:
        """A byte for each window, 0 where it is mapped nowhere."""
        if not self._ring:
            found = bytes(self._cells[start:stop])
            return found if stop is None else found.ljust(stop - start, b"\0")
        stop = self._ring if stop is None else stop
        first, second = self._cells[start:stop], self._cells[self._ring + start : self._ring + stop]
        return bytes(first) if first == second else bytes(a | b for a, b in zip(first, second, strict=True))

    def _taken(self, stretches: Sequence[Stretch]) -> Iterator[Stretch]:
        for start, stop in stretches:
            for match in _TAKEN.finditer(self._cells[start:stop]):
                yield Stretch(start + match.start(), start + match.end())

    def _has_gap(self, stretch: Stretch) -> bool:
        cells = self._cells[stretch.start : stretch.stop]
        return len(cells) < stretch.stop - stretch.start or _VACANT in cells

    def _is_whole(self, stretch: Stretch) -> bool:
        return self._cells[stretch.start] == _FIRST and self._cells[stretch.stop : stretch.stop + 1] != bytes((_REST,))

    def _set(self, start: int, cells: bytes) -> int:
        before = self._count(start, len(cells))
        self._cells[start : start + len(cells)] = cells
        return self._count(start, len(cells)) - before

    def _count(self, start: int, count: int) -> int:
        """Windows mapped: of these cells, or of the whole ring, whose cells stand for the same windows."""
        windows = self._windows(0, None) if self._ring else self._cells[start : start + count]
        return len(windows) - windows.count(_VACANT)
