"""Which windows of one request are its own, and which handle each has. A handle may cover several adjacent ones.

By fragment, a number each: taking a run in or out costs a fraction of a microsecond a window. Knows nothing of
prefixes, of what is missing, or of bytes' prices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from kvcluster.errors import InvariantBroken, NotAllowed
from kvcluster.geometry.residency import Shape
from kvcluster.geometry.windows import Window, runs_of
from kvcluster.ids import RequestId, WindowRun
from kvcluster.memory.handle import Handle, bytes_of


class OwnWindows:
    """Those of one request; `count` of them."""

    def __init__(self, request: RequestId, shape: Shape) -> None:
        self.count = 0
        self._request = request
        self._granule_bytes = shape.granule_bytes
        self._by_place: dict[tuple[int, int], dict[int, Handle]] = {
            (g, f): {} for g, group in enumerate(shape.groups) for f in range(group.fragments)
        }

    def places(self) -> Iterator[tuple[int, int]]:
        """Group and fragment of every fragment, in window order."""
        return iter(self._by_place)

    def numbers(self, group: int, fragment: int) -> dict[int, Handle]:
        """The windows of one fragment, by their numbers; to look at."""
        return self._by_place[group, fragment]

    def attach(self, runs: Sequence[WindowRun], handles: Sequence[Handle]) -> None:
        """The windows of `runs` have these handles now, in window order; a handle covers windows of one run.

        Raises:
            InvariantBroken: the handles are not exactly as large as the runs.
        """
        used = 0
        for run in runs:
            used += self._attach(run, handles, used)
            self.count += run.count
        if used != len(handles):
            raise InvariantBroken(sentence=f"more handles than windows for request {self._request}")

    def detach(self, runs: Sequence[WindowRun]) -> list[Handle]:
        """Take the windows of `runs` out; returns their handles in window order.

        Raises:
            NotAllowed: a window is not its own, does not exist, is named twice, or is a part of a handle whose other
                windows are not named. Nothing changed.
        """
        handles = self.backing(runs)
        for run in runs:
            own = self._by_place[run.group, run.fragment]
            for number in range(run.start, run.start + run.count):
                del own[number]
            self.count -= run.count
        return handles

    def backing(self, runs: Sequence[WindowRun]) -> list[Handle]:
        """The handles that `detach` would take out. Raises as it does."""
        named = sum(run.count for run in runs)
        if named > self.count:  # before anything of a run's length is built
            raise NotAllowed(reason=f"request {self._request} holds {self.count} windows, not {named}")
        found: dict[Handle, None] = {}
        for run in runs:
            self._check_held(run)
            own = self._by_place[run.group, run.fragment]
            found |= dict.fromkeys(map(own.__getitem__, range(run.start, run.start + run.count)))
        if _is_twice(runs):
            raise NotAllowed(reason=f"request {self._request} names a window twice")
        if bytes_of(found) != named * self._granule_bytes:
            raise NotAllowed(reason=f"request {self._request} names windows of a handle and not all of them")
        return list(found)

    def holds(self, runs: Sequence[WindowRun]) -> bool:
        """Whether every window of `runs` is its own."""
        return all(self._has_all(run) for run in runs)

    def contiguous(self, base: tuple[int, ...], limit: tuple[int, ...]) -> tuple[int, ...]:
        """Up to which window each fragment has its own windows from `base` on without a hole; whole handles, at most
        `limit`."""
        return tuple(self._contiguous(g, start, stop) for g, (start, stop) in enumerate(zip(base, limit, strict=True)))

    def held_runs(self) -> tuple[WindowRun, ...]:
        """Every window that is its own."""
        return runs_of(Window(*place, number) for place, own in self._by_place.items() for number in own)

    def held_below(self, windows: tuple[int, ...]) -> tuple[WindowRun, ...]:
        """Its own windows among the first `windows` of each fragment, whole handles."""
        return runs_of(
            Window(*place, number)
            for place, own in self._by_place.items()
            for number in _whole_below(own, windows[place[0]], self._granule_bytes)
        )

    def _attach(self, run: WindowRun, handles: Sequence[Handle], first: int) -> int:
        """Returns how many of `handles`, from `first` on, the run's windows took."""
        own, number, stop = self._by_place[run.group, run.fragment], run.start, run.start + run.count
        for taken, handle in enumerate(handles[first : first + run.count], 1):
            end = number + handle.size_bytes // self._granule_bytes
            if end > stop:
                break
            for covered in range(number, end):
                own[covered] = handle
            if end == stop:
                return taken
            number = end
        raise InvariantBroken(sentence=f"the handles of {run} of request {self._request} do not fill it")

    def _check_held(self, run: WindowRun) -> None:
        if not self._has_all(run):
            raise NotAllowed(reason=f"request {self._request} does not hold all of {run}")

    def _has_all(self, run: WindowRun) -> bool:
        own = self._by_place.get((run.group, run.fragment), {})
        return run.count <= len(own) and all(map(own.__contains__, range(run.start, run.start + run.count)))

    def _contiguous(self, group: int, start: int, limit: int) -> int:
        fragments = [fragment for g, fragment in self._by_place if g == group]
        while True:
            reached = min((self._handle_end(group, f, start, limit) for f in fragments), default=limit)
            if reached == limit or reached <= start:
                return min(reached, limit)
            limit = reached  # no further in any fragment; another's handle may end earlier still

    def _handle_end(self, group: int, fragment: int, start: int, limit: int) -> int:
        """The last end of a handle, from `start` on without a hole, that is not beyond `limit`."""
        own, end = self._by_place[group, fragment], start
        while end < limit and (handle := own.get(end)):
            after = end + handle.size_bytes // self._granule_bytes
            if after > limit:
                break
            end = after
        return end


def _is_twice(runs: Sequence[WindowRun]) -> bool:
    """Whether two of the runs overlap."""
    ordered = sorted(runs)
    return any(
        (a.group, a.fragment) == (b.group, b.fragment) and a.start + a.count > b.start for a, b in pairwise(ordered)
    )


def _whole_below(own: dict[int, Handle], limit: int, granule_bytes: int) -> Iterator[int]:
    """The numbers below `limit` whose handle lies below it as a whole."""
    inside = [number for number in own if number < limit]
    covered = Counter(own[number] for number in inside)
    return (number for number in inside if covered[own[number]] * granule_bytes == own[number].size_bytes)
