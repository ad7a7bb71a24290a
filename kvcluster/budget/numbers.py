"""A set of whole numbers that are nearly in a row, kept as ranges.

Clients number their grants upwards, so thousands of used numbers are one range and cost two integers. A client that
leaves gaps cannot make the set grow for ever: beyond `MOST_RANGES` the lowest gap is closed, and the numbers in it
count as members from then on.
"""

from __future__ import annotations

from bisect import bisect_right

MOST_RANGES = 1024


class Numbers:
    """Ranges [first, end), apart from each other, in order."""

    def __init__(self, most_ranges: int = MOST_RANGES) -> None:
        self._most_ranges = most_ranges
        self._firsts: list[int] = []
        self._ends: list[int] = []

    def __contains__(self, number: int) -> bool:
        place = bisect_right(self._firsts, number) - 1
        return place >= 0 and number < self._ends[place]

    @property
    def ranges(self) -> int:
        """How many ranges are kept: what the set costs."""
        return len(self._firsts)

    def add(self, number: int) -> None:
        """`number` is a member; adding it twice changes nothing."""
        if number in self:
            return
        place = bisect_right(self._firsts, number)
        self._firsts.insert(place, number)
        self._ends.insert(place, number + 1)
        self._join(place)
        self._join(place - 1)
        if self.ranges > self._most_ranges:
            self._close_gap(0)

    def discard(self, number: int) -> None:
        """`number` is no member."""
        if number not in self:
            return
        place = bisect_right(self._firsts, number) - 1
        pieces = [(self._firsts[place], number), (number + 1, self._ends[place])]
        kept = [(first, end) for first, end in pieces if first < end]
        self._firsts[place : place + 1] = [first for first, _ in kept]
        self._ends[place : place + 1] = [end for _, end in kept]

    def _join(self, place: int) -> None:
        """Make one of this range and the next, where they touch."""
        if 0 <= place < self.ranges - 1 and self._ends[place] == self._firsts[place + 1]:
            self._close_gap(place)

    def _close_gap(self, place: int) -> None:
        self._ends[place] = self._ends.pop(place + 1)
        del self._firsts[place + 1]
