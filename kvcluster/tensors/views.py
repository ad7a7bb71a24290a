"""K and V of a sequence as torch tensors over mapped memory: strides, and never a copy.

Nothing here owns memory. Whoever mapped the range (a `mapping.AddressRange`, or the buffer of a test) keeps it
mapped for as long as a view of it lives; a view that outlives its mapping reads freed address. Views end at the
committed length, because what lies behind it is not mapped and faults.

In every layout the vectors of a layer group lie at equal steps (from layer to layer, from K to V, from head to
head, from token to token), so one strided tensor describes rows of the group, and building the views of a whole
model takes some 20 us, whatever its layers are. They are built again each time that a sequence grows. The rows of a
ring begin at their token's offset modulo the ring, and go on into its second mapping: as many as the ring holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch

from kvcluster.geometry.layout import GroupLayout, Layout, Side, group_layouts
from kvcluster.geometry.model import KvGeometry
from kvcluster.geometry.residency import Keeps, RangeMap
from kvcluster.tensors.memory import CPU, memory_at

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Rows:
    """Where the rows of one layer group lie in `memory`, in elements: sizes and steps of [layers, 2, heads, dim].

    Fragments follow each other at `pitch`, rows at `stride`. `ring` is what a row's place is taken modulo, 0 where
    every token has its own. The first `sealed` elements of each fragment may be read and never written.
    """

    memory: torch.Tensor = field(repr=False)  # of the whole range, of which little may be mapped: printing reads it
    sizes: tuple[int, int, int, int]
    steps: tuple[int, int, int, int]
    start: int
    pitch: int
    stride: int
    ring: int = 0
    sealed: int = 0

    def block(self, first: int, count: int) -> torch.Tensor:
        """Tokens [first, first + count) as [layers, 2 (K, V), heads, count, dim].

        Raises:
            ValueError: they are more than the ring holds.
        """
        self.check(first, count)
        at = first * self.stride
        layers, sides, heads, dim = self.sizes
        by_layer, by_side, by_head, by_element = self.steps
        return self.memory.as_strided(
            (layers, sides, heads, count, dim),
            (by_layer, by_side, by_head, self.stride, by_element),
            self.start + (at % self.ring if self.ring else at),
        )

    def check(self, first: int, count: int) -> None:
        """Raises ValueError where the ring does not hold so many tokens at once."""
        if self.ring and count * self.stride > self.ring:
            raise ValueError(
                f"tokens {first} to {first + count} do not lie in a ring at once: it holds {self.ring // self.stride} "
                f"tokens, not {count}"
            )


@dataclass(frozen=True, slots=True)
class GroupView:
    """One layer group over tokens [first, first + tokens) of a sequence.

    `window_tokens` is None where its layers see every token; a ring holds no more than that and a chunk.
    """

    layers: tuple[int, ...]
    window_tokens: int | None
    rows: Rows
    first: int
    tokens: int

    @property
    def block(self) -> torch.Tensor:
        """[layers, 2 (K, V), kv_heads, tokens, head_dim], strided into the range.

        Raises:
            ValueError: they are more tokens than the group's ring holds.
        """
        return self.rows.block(self.first, self.tokens)

    def narrowed(self, start: int, stop: int) -> GroupView:
        """Tokens [start, stop) of these.

        Raises:
            ValueError: they do not lie in these.
        """
        if not 0 <= start <= stop <= self.tokens:
            raise ValueError(f"tokens {start} to {stop} do not lie in {self.tokens}")
        return replace(self, first=self.first + start, tokens=stop - start)


@dataclass(frozen=True, slots=True)
class KvViews:
    """K and V of every layer over the first `tokens` committed tokens. Owns nothing.

    Whatever gives tensors raises ValueError where a ring does not hold `tokens` tokens at once: narrow them first.
    """

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
        """The views of tokens [start, stop) of these.

        Raises:
            ValueError: they do not lie in these.
        """
        return KvViews(stop - start, tuple(group.narrowed(start, stop) for group in self.groups))

    def by_layer(self, pick: Callable[[torch.Tensor], torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """What `pick` takes of each group's block, cut along its first dimension: one tensor a model layer."""
        return self.of_layers(lambda group: pick(group.block).unbind())

    def of_layers(self, take: Callable[[GroupView], Sequence[T]]) -> tuple[T, ...]:
        """What `take` has for the layers of each group, by model layer index."""
        if len(self.groups) == 1:
            return tuple(take(self.groups[0]))
        found = {layer: one for group in self.groups for layer, one in zip(group.layers, take(group), strict=True)}
        return tuple(found[layer] for layer in sorted(found))


def kv_views(
    address: int,
    range_map: RangeMap,
    geometry: KvGeometry,
    layout: Layout,
    *,
    tokens: int,
    dtype: torch.dtype,
    sealed: Sequence[int] = (),
    device: torch.device = CPU,
) -> KvViews:
    """Views of the first `tokens` tokens of the range that begins at `address`; nothing is read or written.

    The caller keeps the range mapped while a view lives, and passes no more tokens than are committed. `sealed`
    windows of each fragment, a group at a time, are mapped for reading only. `device` is whose memory it is.

    Raises:
        ValueError: more tokens than the range holds, or an element type of another size than the geometry's.
    """
    _check(range_map, geometry, tokens, dtype)
    memory = memory_at(address, range_map.size_bytes, dtype, device)
    groups = []
    for number, group in enumerate(group_layouts(geometry, layout)):
        windows = sealed[number] if number < len(sealed) else 0
        rows = _rows(memory, range_map, number, group)
        rows = replace(rows, sealed=windows * range_map.shape.granule_bytes // group.element_bytes) if windows else rows
        groups.append(GroupView(group.group.layers, group.group.window_tokens, rows, 0, tokens))
    return KvViews(tokens, tuple(groups))


def _check(range_map: RangeMap, geometry: KvGeometry, tokens: int, dtype: torch.dtype) -> None:
    if not 0 <= tokens <= range_map.max_tokens:
        raise ValueError(f"views of {tokens} tokens do not lie in a range of {range_map.max_tokens}")
    if dtype.itemsize != geometry.element_bytes:
        raise ValueError(f"{dtype} has {dtype.itemsize} bytes an element and the geometry {geometry.element_bytes}")


def _rows(memory: torch.Tensor, range_map: RangeMap, number: int, group: GroupLayout) -> Rows:
    def offset(layer: int, side: Side, head: int) -> int:
        place = group.place(layer, side, head)
        return (range_map.fragment_offset_bytes(number, place.fragment) + place.offset_bytes) // group.element_bytes

    shape = group.group
    start = offset(0, Side.K, 0)
    steps = (
        offset(1, Side.K, 0) - start if len(shape.layers) > 1 else 0,
        offset(0, Side.V, 0) - start,
        offset(0, Side.K, 1) - start if shape.kv_heads > 1 else 0,
        1,
    )
    is_ring = range_map.shape.groups[number].keeps is Keeps.RING
    return Rows(
        memory,
        sizes=(len(shape.layers), len(Side), shape.kv_heads, shape.head_dim),
        steps=steps,
        start=start,
        pitch=range_map.fragment_pitch_bytes(number) // group.element_bytes,
        stride=group.stride_bytes // group.element_bytes,
        ring=range_map.ring_bytes(number) // group.element_bytes if is_ring else 0,
    )
