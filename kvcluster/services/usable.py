"""How many windows of a request's address can be used, and which of them are read and never written.

Counted from each fragment's first window on: what is mapped behind a hole is of no use. A request whose windows are
torn (some are gone, and others lie behind them) goes on only after a release. What is mapped, and whose it is, is in
`services.holdings`. Pure: nothing is mapped here.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvcluster.geometry.residency import Keeps, Shape
from kvcluster.ids import WindowRun
from kvcluster.services.taken_back import Windows


class UsableWindows:
    """Of one request: `windows` of each fragment, a group at a time; the first `sealed` of them are for reading."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self.empty()

    def empty(self) -> None:
        """Nothing is mapped any more."""
        self.windows = self.sealed = self._shape.windows(0)
        self.is_torn = False

    @property
    def tokens(self) -> int:
        """The most tokens that they hold."""
        return 0 if self.is_torn else self._shape.tokens_in(self.windows)

    @property
    def has_sealed_snapshot(self) -> bool:
        """Whether a snapshot is for reading."""
        return self.sealed != self._without_snapshots(self.sealed)

    def grow(self, wanted: Windows) -> None:
        """So many are there now."""
        self.windows = tuple(map(max, self.windows, wanted))

    def cut(self, kept: Windows) -> None:
        """What lies behind these is gone, and nothing lies behind it."""
        self.windows = tuple(map(min, self.windows, kept))

    def seal(self, runs: Iterable[WindowRun]) -> None:
        """These are there, for reading, and all before them."""
        ends = list(self.sealed)
        for run in runs:
            ends[run.group] = max(ends[run.group], run.start + run.count)
        self.sealed = tuple(ends)
        self.grow(self.sealed)

    def tear(self, runs: Iterable[WindowRun]) -> None:
        """These are gone, and others lie behind them."""
        left = list(self.windows)
        for run in runs:
            left[run.group] = min(left[run.group], run.start)
            self.is_torn = True
        self.windows = tuple(left)
        self.sealed = tuple(map(min, self.sealed, left))

    def drop_snapshots(self) -> None:
        """Those are gone, and nothing lies behind them."""
        self.windows, self.sealed = self._without_snapshots(self.windows), self._without_snapshots(self.sealed)

    def _without_snapshots(self, windows: Windows) -> Windows:
        return tuple(
            0 if group.keeps is Keeps.SNAPSHOT else count
            for group, count in zip(self._shape.groups, windows, strict=True)
        )
