"""Windows of one request whose memory is of an earlier incarnation of its device: mapped by its client, and no handle.

They are there, so that no commit gives them again; they can be unmapped, and are never lent, pooled or shared. By
fragment, a set of numbers each.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvcluster.errors import NotAllowed
from kvcluster.geometry.windows import Window, runs_of
from kvcluster.ids import RequestId, WindowRun

NONE: frozenset[int] = frozenset()


class ForeignWindows:
    """Those of one request; `count` of them."""

    def __init__(self, request: RequestId) -> None:
        self.count = 0
        self._request = request
        self._by_place: dict[tuple[int, int], set[int]] = {}

    def numbers(self, group: int, fragment: int) -> set[int] | frozenset[int]:
        """Those of one fragment; to look at."""
        return self._by_place.get((group, fragment), NONE)

    def runs(self) -> tuple[WindowRun, ...]:
        """All of them."""
        return runs_of(Window(*place, number) for place, mine in self._by_place.items() for number in mine)

    def add(self, runs: Sequence[WindowRun]) -> None:
        """These are mapped. Raises NotAllowed where one is named twice; nothing changed."""
        named = sum(run.count for run in runs)
        added = {(run.group, run.fragment, number) for run in runs for number in _numbers(run)}
        if len(added) != named or any(number in self.numbers(g, f) for g, f, number in added):
            raise NotAllowed(reason=f"request {self._request} names a window twice")
        for run in runs:
            self._by_place.setdefault((run.group, run.fragment), set()).update(_numbers(run))
        self.count += named

    def remove(self, runs: Sequence[WindowRun]) -> None:
        """These are unmapped; each is one of them."""
        for run in runs:
            self._by_place[run.group, run.fragment].difference_update(_numbers(run))
            self.count -= run.count

    def split(self, runs: Sequence[WindowRun]) -> tuple[list[WindowRun], list[WindowRun]]:
        """The parts of `runs` that are foreign, and those that are not, in their order.

        Raises:
            NotAllowed: a foreign window is named twice.
        """
        if not self.count:
            return [], list(runs)
        foreign: list[WindowRun] = []
        others: list[WindowRun] = []
        for run in runs:
            mine = self.numbers(run.group, run.fragment)
            start = run.start
            while start < run.start + run.count:
                is_mine, stop = start in mine, start + 1
                while stop < run.start + run.count and (stop in mine) is is_mine:
                    stop += 1
                (foreign if is_mine else others).append(WindowRun(run.group, run.fragment, start, stop - start))
                start = stop
        named = {(run.group, run.fragment, number) for run in foreign for number in _numbers(run)}
        if len(named) != sum(run.count for run in foreign):
            raise NotAllowed(reason=f"request {self._request} names a window twice")
        return foreign, others


def _numbers(run: WindowRun) -> range:
    return range(run.start, run.start + run.count)
