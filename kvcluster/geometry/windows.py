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
    runs: list[WindowRun] = []
    for window in sorted(windows):
        last = runs[-1] if runs else None
        if last and (last.group, last.fragment, last.start + last.count) == window:
            runs[-1] = WindowRun(last.group, last.fragment, last.start, last.count + 1)
        else:
            runs.append(WindowRun(*window, count=1))
    return tuple(runs)
