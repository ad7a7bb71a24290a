"""K and V of the rows of a batch as torch tensors over mapped memory: one strided tensor a layer, and never a copy.

The rows are equal ranges one behind the other (`mapping.address_range.open_ranges`), so that from row to row there is
one more step. Nothing here owns memory, and only committed tokens may be read or written, as in `tensors.views`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from kvcluster.geometry.layout import Layout
from kvcluster.geometry.model import KvGeometry
from kvcluster.geometry.residency import RangeMap
from kvcluster.tensors.memory import memory_at
from kvcluster.tensors.views import Rows, kv_views


@dataclass(frozen=True, slots=True)
class BatchViews:
    """By model layer: `groups` are where the first row's tokens lie, and which of the group's layers it is.

    `pitch` is the step from row to row, in elements.
    """

    groups: tuple[tuple[Rows, int], ...] = field(repr=False)
    pitch: int

    def block(self, layer: int, rows: int, first: int, count: int) -> torch.Tensor:
        """Tokens [first, first + count) of the first `rows` rows as [2 (K, V), rows, heads, count, dim].

        Raises:
            ValueError: they are more than the layer's ring holds.
        """
        of, index = self.groups[layer]
        of.check(first, count)
        at = first * of.stride
        _, sides, heads, dim = of.sizes
        by_layer, by_side, by_head, by_element = of.steps
        return of.memory.as_strided(
            (sides, rows, heads, count, dim),
            (by_side, self.pitch, by_head, of.stride, by_element),
            of.start + index * by_layer + (at % of.ring if of.ring else at),
        )

    def ring_tokens(self, layer: int) -> int:
        """How many of the last tokens the layer's ring holds; 0 where it keeps every token."""
        of, _ = self.groups[layer]
        return of.ring // of.stride


def batch_views(
    address: int, range_map: RangeMap, geometry: KvGeometry, rows: int, dtype: torch.dtype, device: torch.device
) -> BatchViews:
    """Views of `rows` token-major ranges, the first of which begins at `address`; nothing is read or written.

    Raises:
        ValueError: an element type of another size than the geometry's.
    """
    with torch.inference_mode(mode=False):  # or nobody could write to it outside of that mode
        first = kv_views(address, range_map, geometry, Layout.TOKEN_MAJOR, tokens=0, dtype=dtype, device=device)
        memory = memory_at(address, rows * range_map.size_bytes, dtype, device)
    by_layer = {
        layer: (replace(group.rows, memory=memory), index)
        for group in first.groups
        for index, layer in enumerate(group.layers)
    }
    return BatchViews(tuple(by_layer[layer] for layer in sorted(by_layer)), range_map.size_bytes // dtype.itemsize)
