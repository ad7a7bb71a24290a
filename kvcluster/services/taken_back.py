"""What the client's half of giving back came to, for the device to be told. Values only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kvcluster.errors import KvClusterError
from kvcluster.ids import WindowRun
from kvcluster.services.prefix import LeftPrefix

Windows = tuple[int, ...]  # of each fragment, a group at a time


@dataclass(frozen=True, slots=True)
class TakenBack:
    """What the client's half of giving back came to, in windows that the device still counts as the request's.

    `done` is unmapped; `still` is mapped, because of `error`. `left` are prefixes, the newest first.
    """

    done: tuple[WindowRun, ...] = ()
    still: tuple[WindowRun, ...] = ()
    left: tuple[LeftPrefix, ...] = ()
    error: KvClusterError | None = None

    def with_more(self, other: TakenBack) -> TakenBack:
        """Both, as one thing to tell the device."""
        return TakenBack(
            self.done + other.done, self.still + other.still, other.left + self.left, self.error or other.error
        )


def behind(runs: Iterable[WindowRun], ends: Windows) -> Iterator[WindowRun]:
    """What of `runs` lies behind the first `ends` windows of its fragment."""
    for run in runs:
        start, stop = max(run.start, ends[run.group]), run.start + run.count
        if start < stop:
            yield WindowRun(run.group, run.fragment, start, stop - start)
