"""Where a token's bytes lie: three layouts, as fragments and strides.

A *fragment* is a piece of address that grows with the sequence: token t's row lies at t x stride from its start,
and every fragment starts on a granule.

    layout       fragments of a group       a row holds
    token-major  1                          K and V of all layers and heads of one token
    seq-major    layers x 2       (BSNH)    K or V of all heads of one layer
    head-major   layers x 2 x heads (BNSH)  K or V of one head of one layer

Token-major is the default on the host device: one contiguous fragment a sequence, so that a granule holds tokens
and not pieces of them. Source: "Virtual Memory for KV Cache", "How layout affects the commit lower bound".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from kvcluster.geometry.model import KvGeometry, LayerGroup


class Layout(StrEnum):
    TOKEN_MAJOR = "token-major"
    SEQ_MAJOR = "seq-major"
    HEAD_MAJOR = "head-major"


class Side(IntEnum):
    """K or V; K lies first."""

    K = 0
    V = 1


@dataclass(frozen=True, slots=True)
class Place:
    """Where one head's vector begins: `offset_bytes` within the row of a token in `fragment`."""

    fragment: int
    offset_bytes: int


@dataclass(frozen=True, slots=True)
class GroupLayout:
    """One group of layers under one layout: how many fragments, and one token's step within each."""

    group: LayerGroup
    layout: Layout
    element_bytes: int

    @property
    def fragments(self) -> int:
        layers, heads = len(self.group.layers), self.group.kv_heads
        return {Layout.TOKEN_MAJOR: 1, Layout.SEQ_MAJOR: 2 * layers, Layout.HEAD_MAJOR: 2 * layers * heads}[self.layout]

    @property
    def stride_bytes(self) -> int:
        """Bytes from one token's row to the next, within a fragment."""
        return 2 * len(self.group.layers) * self.group.kv_heads * self._head_bytes // self.fragments

    @property
    def _head_bytes(self) -> int:
        return self.group.head_dim * self.element_bytes

    def place(self, layer: int, side: Side, head: int) -> Place:
        """Where K or V of `head` of the group's `layer`-th layer begins in each row.

        Raises:
            ValueError: the group has no such layer or head.
        """
        layers, heads = len(self.group.layers), self.group.kv_heads
        if not (0 <= layer < layers and 0 <= head < heads):
            raise ValueError(f"the group has {layers} layers and {heads} heads, not layer {layer} and head {head}")
        vector = (layer * 2 + side) * heads + head
        vectors_in_row = self.stride_bytes // self._head_bytes
        return Place(vector // vectors_in_row, vector % vectors_in_row * self._head_bytes)


def group_layouts(geometry: KvGeometry, layout: Layout) -> tuple[GroupLayout, ...]:
    """Each group of `geometry` under `layout`, in the geometry's order."""
    return tuple(GroupLayout(group, layout, geometry.element_bytes) for group in geometry.groups)
