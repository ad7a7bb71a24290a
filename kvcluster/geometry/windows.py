"""Windows one by one, and back to runs: for the few places that must look at each.

A window is (group, fragment, number); a run is many adjacent ones of one fragment (`ids.WindowRun`). Plans are made
of runs; only what a release names, or a failure leaves behind, is looked at window by window.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kvcluster.ids import WindowRun


class Window(NamedTuple):
    group: int
    fragment: int
    number: int


def windows_of(runs: Iterable[WindowRun]) -> Iterator[Window]:
    """Every window of `runs`, in the order in which handles are handed over."""
    for run in runs:
        for number in range(run.start, run.start + run.count):
            yield Window(run.group, run.fragment, number)


def runs_of(windows: Iterable[Window]) -> tuple[WindowRun, ...]:
    """`windows` (any order, no duplicates) as the fewest runs, ascending."""
    firsts: list[Window] = []
    counts: list[int] = []
    following: tuple[int, int, int] | None = None
    for window in sorted(windows):
        if window != following:
            firsts.append(window)
            counts.append(0)
        counts[-1] += 1
        group, fragment, number = window
        following = group, fragment, number + 1
    return tuple(WindowRun(*first, count=count) for first, count in zip(firsts, counts, strict=True))
