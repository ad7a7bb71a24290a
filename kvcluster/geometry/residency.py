"""Which granules a sequence needs: committed bytes = granule x windows with at least one live byte.

A *window* is one granule of address. All fragments of a group have one stride, so they always hold the same
number of windows, and a sequence's state is one number a group. `Shape` is what the device must know of a
request: no layers and no heads, only fragments, strides and what each group keeps. `RangeMap` adds the most tokens
that it may hold and says where in one address range each window lies.

    keeps      windows of a fragment                 what for
    every      as many as its tokens touch           full attention
    ring       the same, but never more than fixed   a sliding window (geometry.ring): mapped twice in a row
    snapshot   none, or all of a fixed number        the window before a boundary that others join at

Source: "Virtual Memory for KV Cache", "The first key constraint: granularity".
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from kvcluster.geometry.layout import GroupLayout, Layout, group_layouts
from kvcluster.geometry.model import KvGeometry
from kvcluster.geometry.ring import Ring
from kvcluster.ids import WindowRun
from kvcluster.units import ceil_div

CHUNK_TOKENS = 256  # the most tokens of a sequence that one step computes, where nobody says otherwise


class Keeps(StrEnum):
    """What a group keeps of the tokens that it has seen."""

    EVERY = "every"
    RING = "ring"
    SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True)
class GroupShape:
    """`fragments` pieces of address, `stride_bytes` a token; `windows` is the fixed number, where there is one."""

    fragments: int
    stride_bytes: int
    keeps: Keeps = Keeps.EVERY
    windows: int = 0

    def __post_init__(self) -> None:
        if self.fragments < 1 or self.stride_bytes < 1:
            raise ValueError(f"a group needs at least 1 fragment and 1 byte a token, not {self}")
        if self.windows < 0 or (self.windows > 0) != (self.keeps is not Keeps.EVERY):
            raise ValueError(f"a ring and a snapshot have a fixed number of windows, and nothing else has: {self}")

    def touched(self, tokens: int, granule_bytes: int) -> int:
        """Windows of a fragment that hold a byte of the first `tokens` tokens."""
        if self.keeps is Keeps.SNAPSHOT:
            return 0
        touched = ceil_div(tokens * self.stride_bytes, granule_bytes)
        return min(touched, self.windows) if self.keeps is Keeps.RING else touched


@dataclass(frozen=True, slots=True)
class Shape:
    """A request's memory as the device sees it, in granules of `granule_bytes`."""

    groups: tuple[GroupShape, ...]
    granule_bytes: int

    def __post_init__(self) -> None:
        if not self.groups or self.granule_bytes < 1:
            raise ValueError(f"a shape needs at least 1 group and a granule, not {self}")

    @classmethod
    def of(cls, geometry: KvGeometry, layout: Layout, granule_bytes: int, *, chunk_tokens: int = CHUNK_TOKENS) -> Shape:
        """The geometry's groups in their order, then a snapshot for each ring, in order.

        A ring is laid out for steps of at most `chunk_tokens` tokens of one sequence.
        """
        layouts = group_layouts(geometry, layout)
        groups = tuple(_group_shape(g, chunk_tokens, granule_bytes) for g in layouts)
        snapshots = tuple(_snapshot_shape(g, granule_bytes) for g in layouts if g.group.window_tokens is not None)
        return cls(groups + snapshots, granule_bytes)

    @property
    def has_rings(self) -> bool:
        return any(g.keeps is Keeps.RING for g in self.groups)

    def snapshots(self) -> tuple[tuple[int, int], ...]:
        """Each ring's group and the group of its snapshot."""
        rings, snapshots = (
            [number for number, g in enumerate(self.groups) if g.keeps is keeps]
            for keeps in (Keeps.RING, Keeps.SNAPSHOT)
        )
        return tuple(zip(rings, snapshots, strict=True))

    def windows(self, tokens: int) -> tuple[int, ...]:
        """Windows of each fragment, a group at a time, that hold a byte of the first `tokens` tokens."""
        return tuple(g.touched(tokens, self.granule_bytes) for g in self.groups)

    def with_snapshots(self, windows: tuple[int, ...]) -> tuple[int, ...]:
        """The same with every snapshot in full."""
        return tuple(
            g.windows if g.keeps is Keeps.SNAPSHOT else count for g, count in zip(self.groups, windows, strict=True)
        )

    @property
    def snapshot_bytes(self) -> int:
        """What one snapshot of each ring takes."""
        return self.granule_bytes * self.window_count(self.with_snapshots((0,) * len(self.groups)))

    def whole_windows(self, tokens: int) -> tuple[int, ...]:
        """Windows of each fragment that the first `tokens` tokens fill to the last byte; a ring's in its first lap."""
        return tuple(
            min(tokens * g.stride_bytes // self.granule_bytes, touched)
            for g, touched in zip(self.groups, self.windows(tokens), strict=True)
        )

    def shared_windows(self, tokens: int) -> tuple[int, ...]:
        """Windows of each fragment that a prefix of `tokens` tokens shares: whole ones, and snapshots."""
        every = tuple(
            tokens * g.stride_bytes // self.granule_bytes if g.keeps is Keeps.EVERY else 0 for g in self.groups
        )
        return self.with_snapshots(every)

    def reusable_tokens(self, windows: tuple[int, ...], tokens: int) -> int:
        """Where one begins to compute who has the first `windows` of a prompt of `tokens` tokens; 0 where none helps.

        Never all of them: the last token must be computed to know the next.
        """
        sealed = [
            count * self.granule_bytes // g.stride_bytes
            for g, count in zip(self.groups, windows, strict=True)
            if g.keeps is Keeps.EVERY
        ]
        return min([tokens - 1, *sealed]) if sealed else 0

    def tokens_in(self, windows: tuple[int, ...]) -> int:
        """The most tokens that lie wholly in so many windows a fragment; a ring that is whole bounds nothing."""
        bounds = [
            count * self.granule_bytes // g.stride_bytes
            for g, count in zip(self.groups, windows, strict=True)
            if g.keeps is Keeps.EVERY or (g.keeps is Keeps.RING and count < g.windows)
        ]
        return min(bounds, default=sys.maxsize)

    def window_count(self, windows: tuple[int, ...]) -> int:
        """All windows of all fragments, where each fragment of group g holds windows[g]."""
        return sum(g.fragments * count for g, count in zip(self.groups, windows, strict=True))

    def committed_bytes(self, tokens: int) -> int:
        """What `tokens` tokens cost: granule x windows with at least one live byte."""
        return self.granule_bytes * self.window_count(self.windows(tokens))

    def runs(self, have: tuple[int, ...], want: tuple[int, ...]) -> Iterator[WindowRun]:
        """The windows in `want` and not in `have`: one run a fragment, in window order."""
        for number, (group, start, stop) in enumerate(zip(self.groups, have, want, strict=True)):
            if stop > start:
                for fragment in range(group.fragments):
                    yield WindowRun(number, fragment, start, stop - start)


def _group_shape(layout: GroupLayout, chunk_tokens: int, granule_bytes: int) -> GroupShape:
    if layout.group.window_tokens is None:
        return GroupShape(layout.fragments, layout.stride_bytes)
    ring = Ring.of(layout, chunk_tokens, granule_bytes)
    return GroupShape(layout.fragments, layout.stride_bytes, Keeps.RING, ring.windows)


def _snapshot_shape(layout: GroupLayout, granule_bytes: int) -> GroupShape:
    assert layout.group.window_tokens is not None
    windows = ceil_div(layout.group.window_tokens * layout.stride_bytes, granule_bytes)
    return GroupShape(layout.fragments, layout.stride_bytes, Keeps.SNAPSHOT, windows)


class _Strip(NamedTuple):
    """Where the fragments of one group lie: from `offset_bytes` on, `pitch_bytes` each, so many windows in each."""

    offset_bytes: int
    pitch_bytes: int
    fragments: int
    windows: int
    copies: int


def _strips(shape: Shape, max_tokens: int) -> Iterator[_Strip]:
    offset_bytes = 0
    for group, windows in zip(shape.groups, shape.with_snapshots(shape.windows(max_tokens)), strict=True):
        goes_on = max_tokens * group.stride_bytes > group.windows * shape.granule_bytes
        copies = 2 if group.keeps is Keeps.RING and goes_on else 1
        strip = _Strip(offset_bytes, copies * windows * shape.granule_bytes, group.fragments, windows, copies)
        yield strip
        offset_bytes += group.fragments * strip.pitch_bytes


@dataclass(frozen=True, slots=True)
class RangeMap:
    """One address range for at most `max_tokens` tokens: fragments one after another, each on a granule.

    A ring that goes on beyond its first lap is mapped twice in a row: its fragments take twice the address. A ring
    that never does lies like a group that keeps every token.
    """

    shape: Shape
    max_tokens: int
    _strips: tuple[_Strip, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"a range holds at least 1 token, not {self.max_tokens}")
        object.__setattr__(self, "_strips", tuple(_strips(self.shape, self.max_tokens)))  # looked at for every run

    @property
    def size_bytes(self) -> int:
        """Bytes of address."""
        last = self._strips[-1]
        return last.offset_bytes + last.fragments * last.pitch_bytes

    @property
    def most_bytes(self) -> int:
        """The most bytes of memory that `max_tokens` tokens take, without snapshots."""
        return self.shape.committed_bytes(self.max_tokens)

    def most_windows(self, group: int) -> int:
        """Windows of each fragment of `group` that there can be."""
        return self._strips[group].windows

    def copies(self, group: int) -> int:
        """At how many addresses each window of `group` is mapped: 2 where a ring goes on beyond its first lap."""
        return self._strips[group].copies

    def ring_bytes(self, group: int) -> int:
        """What a ring's token offsets are taken modulo, and the way from a window's first address to its second."""
        return self.shape.groups[group].windows * self.shape.granule_bytes

    def fragment_pitch_bytes(self, group: int) -> int:
        """Bytes from the start of one fragment of `group` to the next."""
        return self._strips[group].pitch_bytes

    def fragment_offset_bytes(self, group: int, fragment: int) -> int:
        """Where the fragment begins, from the range's start."""
        strip = self._strips[group]
        return strip.offset_bytes + fragment * strip.pitch_bytes

    def run_offset_bytes(self, run: WindowRun) -> int:
        """Where the run's first window begins (its first copy), from the range's start.

        Raises:
            ValueError: the run does not lie in this range.
        """
        strip = self._strips[run.group] if 0 <= run.group < len(self._strips) else None
        if not (
            strip
            and 0 <= run.fragment < strip.fragments
            and run.count >= 1
            and 0 <= run.start <= strip.windows - run.count
        ):
            raise ValueError(f"{run} does not lie in a range of {self.max_tokens} tokens")
        return strip.offset_bytes + run.fragment * strip.pitch_bytes + run.start * self.shape.granule_bytes
