"""Which granules a sequence needs: committed bytes = granule x windows with at least one live byte.

A *window* is one granule of address. All fragments of a group have one stride, so they always hold the same
number of windows, and a sequence's state is one number a group. `Shape` is what the device must know of a
request: no layers and no heads, only fragments and strides. `RangeMap` adds the most tokens that it may hold and
says where in one address range each window lies.

In both, a group keeps every token (rings come with their own module). Source: "Virtual Memory for KV Cache",
"The first key constraint: granularity".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvcluster.geometry.layout import Layout, group_layouts
from kvcluster.geometry.model import KvGeometry
from kvcluster.ids import WindowRun
from kvcluster.units import ceil_div


@dataclass(frozen=True, slots=True)
class GroupShape:
    """`fragments` pieces of address that each grow by `stride_bytes` a token."""

    fragments: int
    stride_bytes: int

    def __post_init__(self) -> None:
        if self.fragments < 1 or self.stride_bytes < 1:
            raise ValueError(f"a group needs at least 1 fragment and 1 byte a token, not {self}")


@dataclass(frozen=True, slots=True)
class Shape:
    """A request's memory as the device sees it, in granules of `granule_bytes`."""

    groups: tuple[GroupShape, ...]
    granule_bytes: int

    def __post_init__(self) -> None:
        if not self.groups or self.granule_bytes < 1:
            raise ValueError(f"a shape needs at least 1 group and a granule, not {self}")

    @classmethod
    def of(cls, geometry: KvGeometry, layout: Layout, granule_bytes: int) -> Shape:
        groups = tuple(GroupShape(g.fragments, g.stride_bytes) for g in group_layouts(geometry, layout))
        return cls(groups, granule_bytes)

    @property
    def token_bytes(self) -> int:
        return sum(g.fragments * g.stride_bytes for g in self.groups)

    def windows(self, tokens: int) -> tuple[int, ...]:
        """Windows of each fragment, a group at a time, that hold a byte of the first `tokens` tokens."""
        return tuple(ceil_div(tokens * g.stride_bytes, self.granule_bytes) for g in self.groups)

    def whole_windows(self, tokens: int) -> tuple[int, ...]:
        """Windows of each fragment that the first `tokens` tokens fill to the last byte."""
        return tuple(tokens * g.stride_bytes // self.granule_bytes for g in self.groups)

    def tokens_in(self, windows: tuple[int, ...]) -> int:
        """The most tokens that lie wholly in so many windows a fragment."""
        return min(count * self.granule_bytes // g.stride_bytes for g, count in zip(self.groups, windows, strict=True))

    def window_count(self, windows: tuple[int, ...]) -> int:
        """All windows of all fragments, where each fragment of group g holds windows[g]."""
        return sum(g.fragments * count for g, count in zip(self.groups, windows, strict=True))

    def committed_bytes(self, tokens: int) -> int:
        """What `tokens` tokens cost: granule x windows with at least one live byte."""
        return self.granule_bytes * self.window_count(self.windows(tokens))

    def live_bytes(self, tokens: int) -> int:
        """What `tokens` tokens really hold."""
        return tokens * self.token_bytes

    def runs(self, have: tuple[int, ...], want: tuple[int, ...]) -> Iterator[WindowRun]:
        """The windows in `want` and not in `have`: one run a fragment, in window order."""
        for number, (group, start, stop) in enumerate(zip(self.groups, have, want, strict=True)):
            if stop > start:
                for fragment in range(group.fragments):
                    yield WindowRun(number, fragment, start, stop - start)


@dataclass(frozen=True, slots=True)
class RangeMap:
    """One address range for at most `max_tokens` tokens: fragments one after another, each on a granule."""

    shape: Shape
    max_tokens: int

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"a range holds at least 1 token, not {self.max_tokens}")

    @property
    def size_bytes(self) -> int:
        return self.shape.committed_bytes(self.max_tokens)

    def fragment_pitch_bytes(self, group: int) -> int:
        """Bytes from the start of one fragment of `group` to the next."""
        return self.shape.windows(self.max_tokens)[group] * self.shape.granule_bytes

    def fragment_offset_bytes(self, group: int, fragment: int) -> int:
        """Where the fragment begins, from the range's start."""
        before = sum(g.fragments * self.fragment_pitch_bytes(i) for i, g in enumerate(self.shape.groups[:group]))
        return before + fragment * self.fragment_pitch_bytes(group)

    def run_offset_bytes(self, run: WindowRun) -> int:
        """Where the run's first window begins, from the range's start.

        Raises:
            ValueError: the run does not lie in this range.
        """
        self._check(run)
        return self.fragment_offset_bytes(run.group, run.fragment) + run.start * self.shape.granule_bytes

    def _check(self, run: WindowRun) -> None:
        inside = (
            0 <= run.group < len(self.shape.groups)
            and 0 <= run.fragment < self.shape.groups[run.group].fragments
            and run.count >= 1
            and run.start >= 0
            and run.start + run.count <= self.shape.windows(self.max_tokens)[run.group]
        )
        if not inside:
            raise ValueError(f"{run} does not lie in a range of {self.max_tokens} tokens")
