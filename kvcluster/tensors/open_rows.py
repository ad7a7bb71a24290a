"""Writing rows of which the first bytes may only be read: what lies below a fragment's sealed end is dropped.

A shared prefix is sealed a granule at a time, and a granule's edge falls inside a token for most models. So of the
first tokens that a joiner computes some lie below the edge in whole, one in part, and the rest above it:

    sealed end of the fragment  ------v
    [ row 8 ........ ][ row 9 ... K0 K1 V0 V1 ][ row 10 ...
      dropped           K0 dropped, K1 from its middle on, V0 and V1 written

What is dropped is there already, and equal, because it was computed from the same tokens. Only the first step after
a join meets this; for every other the rows are one tensor.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from kvcluster.geometry.layout import Side
from kvcluster.tensors.views import GroupView
from kvcluster.units import ceil_div


class Writable(Protocol):
    """Where new rows of one layer go: a tensor, or what is open of it."""

    def copy_(self, src: torch.Tensor, /) -> object:
        """Take [2 (K, V), kv_heads, new tokens, head_dim]."""


@dataclass(frozen=True, slots=True)
class VectorEnd:
    """The elements from `first` on of one K or V vector, and where they go."""

    side: Side
    head: int
    first: int
    place: torch.Tensor


@dataclass(frozen=True, slots=True)
class OpenRows:
    """Of one layer's new rows the first `dropped` do not go into `rows`; of the last of those some ends are written."""

    dropped: int
    ends: tuple[VectorEnd, ...]
    rows: torch.Tensor

    def copy_(self, src: torch.Tensor, /) -> None:
        for end in self.ends:
            end.place.copy_(src[end.side, end.head, self.dropped - 1, end.first :])
        self.rows.copy_(src[:, :, self.dropped :])


def writable_rows(group: GroupView) -> Sequence[Writable]:
    """Where the group's rows may be written, a layer at a time."""
    rows = group.rows
    if rows.sealed <= group.first * rows.stride:
        return group.block.unbind()
    dropped = min(ceil_div(rows.sealed, rows.stride) - group.first, group.tokens)
    blocks = group.narrowed(dropped, group.tokens).block.unbind()
    last = group.first + dropped - 1
    return [OpenRows(dropped, tuple(_ends(group, layer, last)), block) for layer, block in enumerate(blocks)]


def _ends(group: GroupView, layer: int, token: int) -> Iterator[VectorEnd]:
    """What is open of the token's vectors in the group's `layer`-th layer."""
    rows = group.rows
    _, sides, heads, dim = rows.sizes
    by_layer, by_side, by_head, _ = rows.steps
    sealed = rows.sealed - token * rows.stride  # of the row
    for side, head in itertools.product(range(sides), range(heads)):
        vector = layer * by_layer + side * by_side + head * by_head
        first = max(0, sealed - vector % rows.pitch)
        if first < dim:
            start = rows.start + token * rows.stride + vector + first
            yield VectorEnd(Side(side), head, first, rows.memory[start : start + dim - first])
