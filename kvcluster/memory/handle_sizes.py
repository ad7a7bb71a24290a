"""How runs of windows are cut into handles: few large ones, but single granules where others may share.

A handle is mapped, shared and given back whole. What lies beyond the shareable range of a prompt, rings and
snapshots are taken in bulk handles as far as these fit; the shareable range, and what is left over at a run's end,
in single granules. Where the driver gains nothing by large handles (the host) `bulk_bytes` is the granule.
Source: the CUDA driver API charges by the call: create and map of 16 MiB cost about as much as those of 2 MiB.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from kvcluster.geometry.residency import Keeps, Shape
from kvcluster.ids import WindowRun
from kvcluster.units import ceil_div


@dataclass(frozen=True, slots=True)
class HandleSizes:
    """Sizes for one request: windows of each fragment below `single` get a handle each."""

    granule_bytes: int
    bulk_bytes: int
    single: tuple[int, ...]

    @classmethod
    def of(cls, shape: Shape, shareable_tokens: int, bulk_bytes: int) -> HandleSizes:
        """Single granules below `shareable_tokens` tokens of the groups that keep every token."""
        granule_bytes = shape.granule_bytes
        single = tuple(
            ceil_div(shareable_tokens * g.stride_bytes, granule_bytes) if g.keeps is Keeps.EVERY else 0
            for g in shape.groups
        )
        return cls(granule_bytes, bulk_bytes, single)

    def cut(self, runs: Iterable[WindowRun]) -> list[int]:
        """Bytes of each handle, in the order of the runs' windows."""
        return list(chain.from_iterable(map(self._of_run, runs)))

    def _of_run(self, run: WindowRun) -> list[int]:
        bulk_windows = self.bulk_bytes // self.granule_bytes
        if bulk_windows <= 1:
            return [self.granule_bytes] * run.count
        singles = min(max(0, self.single[run.group] - run.start), run.count)
        bulks, rest = divmod(run.count - singles, bulk_windows)
        return [self.granule_bytes] * singles + [self.bulk_bytes] * bulks + [self.granule_bytes] * rest
