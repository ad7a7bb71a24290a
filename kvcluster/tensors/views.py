"""K and V of a sequence as torch tensors over mapped memory: strides, and never a copy.

Nothing here owns memory. Whoever mapped the range (a `mapping.AddressRange`, or the buffer of a test) keeps it
mapped for as long as a view of it lives; a view that outlives its mapping reads freed address. Views end at the
committed length, because what lies behind it is not mapped and faults.

In every layout the vectors of a layer group lie at equal steps (from layer to layer, from K to V, from head to
head, from token to token), so one strided tensor describes the group, and building the views of a whole model takes
some 20 us, whatever its layers are. They are built again each time that a sequence grows.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_uint8
from dataclasses import dataclass

import torch

from kvcluster.geometry.layout import GroupLayout, Layout, Side, group_layouts
from kvcluster.geometry.model import KvGeometry
from kvcluster.geometry.residency import RangeMap


@dataclass(frozen=True, slots=True)
class GroupView:
    """One layer group: `block` is [layers, 2 (K, V), kv_heads, tokens, head_dim], strided into the range."""

    layers: tuple[int, ...]
    block: torch.Tensor


@dataclass(frozen=True, slots=True)
class KvViews:
    """K and V of every layer over the first `tokens` committed tokens. Owns nothing."""

    tokens: int
    groups: tuple[GroupView, ...]

    @property
    def k(self) -> tuple[torch.Tensor, ...]:
        """By model layer index: [kv_heads, tokens, head_dim]."""
        return self.by_layer(lambda block: block[:, Side.K])

    @property
    def v(self) -> tuple[torch.Tensor, ...]:
        """By model layer index: [kv_heads, tokens, head_dim]."""
        return self.by_layer(lambda block: block[:, Side.V])

    def narrowed(self, start: int, stop: int) -> KvViews:
        """The views of tokens [start, stop) of these."""
        groups = tuple(GroupView(g.layers, g.block[:, :, :, start:stop]) for g in self.groups)
        return KvViews(stop - start, groups)

    def by_layer(self, pick: Callable[[torch.Tensor], torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """What `pick` takes of each group's block, cut along its first dimension: one tensor a model layer."""
        if len(self.groups) == 1:
            return pick(self.groups[0].block).unbind()
        tensors = {
            layer: tensor for g in self.groups for layer, tensor in zip(g.layers, pick(g.block).unbind(), strict=True)
        }
        return tuple(tensors[layer] for layer in sorted(tensors))


def kv_views(
    address: int, range_map: RangeMap, geometry: KvGeometry, layout: Layout, *, tokens: int, dtype: torch.dtype
) -> KvViews:
    """Views of the first `tokens` tokens of the range that begins at `address`; nothing is read or written.

    The caller keeps the range mapped while a view lives, and passes no more tokens than are committed.

    Raises:
        ValueError: more tokens than the range holds, or an element type of another size than the geometry's.
    """
    _check(range_map, geometry, tokens, dtype)
    memory = torch.frombuffer((c_uint8 * range_map.size_bytes).from_address(address), dtype=dtype)
    groups = tuple(
        GroupView(group.group.layers, _block(memory, range_map, number, group, tokens))
        for number, group in enumerate(group_layouts(geometry, layout))
    )
    return KvViews(tokens, groups)


def _check(range_map: RangeMap, geometry: KvGeometry, tokens: int, dtype: torch.dtype) -> None:
    if not 0 <= tokens <= range_map.max_tokens:
        raise ValueError(f"views of {tokens} tokens do not lie in a range of {range_map.max_tokens}")
    if dtype.itemsize != geometry.element_bytes:
        raise ValueError(f"{dtype} has {dtype.itemsize} bytes an element and the geometry {geometry.element_bytes}")


def _block(memory: torch.Tensor, range_map: RangeMap, number: int, group: GroupLayout, tokens: int) -> torch.Tensor:
    def offset(layer: int, side: Side, head: int) -> int:
        place = group.place(layer, side, head)
        return range_map.fragment_offset_bytes(number, place.fragment) + place.offset_bytes

    shape = group.group
    start = offset(0, Side.K, 0)
    steps = (
        offset(1, Side.K, 0) - start if len(shape.layers) > 1 else 0,
        offset(0, Side.V, 0) - start,
        offset(0, Side.K, 1) - start if shape.kv_heads > 1 else 0,
        group.stride_bytes,
        group.element_bytes,
    )
    sizes = (len(shape.layers), len(Side), shape.kv_heads, tokens, shape.head_dim)
    return memory.as_strided(sizes, [step // group.element_bytes for step in steps], start // group.element_bytes)
