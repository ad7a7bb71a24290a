"""Handles in the order in which they are laid side by side, given out by bytes.

A ticket hands over one row of handles for many runs of windows, and a handle may be larger than a window: which ones
are a run's is a question of bytes. Asked with a sum for each handle and a bisection for each run: a loop over the
handles in Python cost a hundredth of the system calls that map them, twice for each commit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from kvcluster.driver.protocol import PhysicalHandle


class Supply:
    """`handles` that are not given out yet; `given_bytes` are."""

    def __init__(self, handles: Sequence[PhysicalHandle]) -> None:
        self.given_bytes = 0
        self._handles = handles
        self._ends = list(accumulate([handle.size_bytes for handle in handles]))
        self._given = 0

    @property
    def is_empty(self) -> bool:
        return self._given == len(self._handles)

    def next(self, size_bytes: int) -> Sequence[PhysicalHandle]:
        """The next ones, until they hold `size_bytes` or more; fewer where there are no more."""
        if size_bytes < 1 or self.is_empty:
            return ()
        first = self._given
        last = bisect_left(self._ends, self.given_bytes + size_bytes, first)
        self._given = min(last + 1, len(self._handles))
        self.given_bytes = self._ends[self._given - 1]
        return self._handles[first : self._given]
