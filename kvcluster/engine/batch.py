"""One step's work: the new tokens of every sequence, packed into one row of the model's input.

Nothing is padded. Whatever the layers have in common (positions, where each slice writes, what it reads, its mask)
is prepared here once a step, so that the attention function only computes. Layers that see a window read it from
their group's ring; what lies below a sealed end is read, and not written. Sequences in ranges and sequences in host
pages may stand in one step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from kvcluster.engine.kernels.library import Kernels, StepTable
from kvcluster.engine.paged_attention import GatheredBlocks, Scratch, reads_of_pages
from kvcluster.engine.step_table import first_seen, step_table
from kvcluster.geometry.layout import Side
from kvcluster.geometry.model import LayerGroup
from kvcluster.tensors.memory import CPU
from kvcluster.tensors.open_rows import Writable, writable_rows
from kvcluster.tensors.paged_views import PagedViews
from kvcluster.tensors.views import GroupView, KvViews


@dataclass(frozen=True, slots=True)
class Slice:
    """New tokens of one sequence, at positions [start, start + len(token_ids)); K and V before `start` are written.

    `sample`: the logits after the last of them are wanted. With the window that the first of them sees they are no
    more tokens than a ring holds: it is made for chunks of a certain length.
    """

    kv: KvViews | PagedViews
    start: int
    token_ids: Sequence[int]
    sample: bool

    def __post_init__(self) -> None:
        if not self.token_ids or self.start < 0:
            raise ValueError("a slice holds at least 1 token and starts at 0 or later")
        if self.stop > self.kv.tokens:
            raise ValueError(f"tokens up to {self.stop} do not lie in the {self.kv.tokens} that are committed")
        for group in self.kv.groups if isinstance(self.kv, KvViews) else ():
            if group.rows.ring:
                first = first_seen(self.start, group.window_tokens)
                group.rows.check(first, self.stop - first)

    @property
    def stop(self) -> int:
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Reads:
    """What one slice attends to in a group's layers, by model layer index: K and V as [1, kv_heads, keys, head_dim].

    `mask` is added to the scores, [new tokens, keys]. A single token has none: it sees every key that it reads.
    """

    k: Mapping[int, torch.Tensor]
    v: Mapping[int, torch.Tensor]
    mask: torch.Tensor | None

    def of_layer(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.k[layer], self.v[layer]


AnyReads = Reads | GatheredBlocks


class PackedBatch:
    """The slices of one step, as the model takes them, on its device. It lives for that step only.

    With `kernels` its layers write and read through a table of addresses, else through views.
    """

    def __init__(
        self,
        slices: Sequence[Slice],
        dtype: torch.dtype,
        device: torch.device = CPU,
        *,
        kernels: Kernels | None = None,
    ) -> None:
        if not slices:
            raise ValueError("a batch holds at least 1 slice")
        self.kernels = kernels
        self._slices = slices
        self._dtype = dtype
        self._device = device
        groups: Sequence[GroupView | LayerGroup] = slices[0].kv.groups
        self._windows = [group.window_tokens for group in groups]
        self._place_of = {
            layer: (number, index) for number, group in enumerate(groups) for index, layer in enumerate(group.layers)
        }
        self._tables: dict[int, StepTable] = {}
        self._reads: dict[tuple[int, int | None], tuple[AnyReads, ...]] = {}
        self._scratch = Scratch()
        self.sizes = [len(piece.token_ids) for piece in slices]
        self.token_ids = torch.tensor([[token for piece in slices for token in piece.token_ids]], device=device)
        self.positions = torch.tensor(
            [[at for piece in slices for at in range(piece.start, piece.stop)]], device=device
        )

    @cached_property
    def writes(self) -> tuple[tuple[Writable, ...], ...]:
        """By layer, then by slice: takes [2 (K, V), kv_heads, new tokens, head_dim]."""
        return tuple(zip(*[_writes(piece) for piece in self._slices], strict=True))

    def place_in_group(self, layer: int) -> int:
        """Which of its group's layers it is."""
        return self._place_of[layer][1]

    def table(self, layer: int, window: int | None) -> StepTable:
        """Where the slices lie in `layer` and its group's other layers, which see the last `window` tokens.

        Raises:
            ValueError: the layer keeps fewer tokens than it is to see.
        """
        group, _ = self._place_of[layer]
        kept = self._windows[group]
        if kept is not None and (window is None or window > kept):
            raise ValueError(f"layer {layer} keeps the last {kept} tokens and is to see {window or 'all'}")
        if group not in self._tables:
            self._tables[group] = step_table(self._slices, group)
        return self._tables[group]

    def sampled_rows(self) -> torch.Tensor:
        """The rows whose logits are wanted, in slice order."""
        ends = torch.tensor(self.sizes).cumsum(0) - 1
        return ends[torch.tensor([piece.sample for piece in self._slices])].to(self._device)

    def reads(self, layer: int, window: int | None) -> tuple[AnyReads, ...]:
        """What each slice attends to in `layer`, which sees the last `window` tokens, themselves included (None: all).

        Raises:
            ValueError: the layer keeps fewer tokens than it is to see.
        """
        key = (self._place_of[layer][0], window)
        if key not in self._reads:
            self._reads[key] = tuple([self._read(piece, *key) for piece in self._slices])
        return self._reads[key]

    def _read(self, piece: Slice, group: int, window: int | None) -> AnyReads:
        first = first_seen(piece.start, window)
        if isinstance(piece.kv, PagedViews):
            mask = self._mask(piece, first, window)
            return reads_of_pages(piece.kv, first, piece.stop, mask, self._scratch)
        keys = piece.kv.groups[group].narrowed(first, piece.stop)
        block = keys.block
        k, v = (_of_side(block, keys.layers, side) for side in Side)
        return Reads(k, v, self._mask(piece, first, window))

    def _mask(self, piece: Slice, first: int, window: int | None) -> torch.Tensor | None:
        """0 where the token at position i sees the key at position j (0 <= i - j < window), else minus infinity."""
        if len(piece.token_ids) == 1:
            return None
        positions = torch.arange(first, piece.stop, device=self._device)
        distance = positions[piece.start - first :, None] - positions
        hidden = distance < 0 if window is None else (distance < 0) | (distance >= window)
        return torch.zeros(distance.shape, dtype=self._dtype, device=self._device).masked_fill_(hidden, float("-inf"))


def _writes(piece: Slice) -> Sequence[Writable]:
    """Where the slice's rows go, by model layer."""
    if isinstance(piece.kv, PagedViews):
        return piece.kv.writable(piece.start, piece.stop)
    return piece.kv.narrowed(piece.start, piece.stop).of_layers(writable_rows)


def _of_side(block: torch.Tensor, layers: Sequence[int], side: Side) -> Mapping[int, torch.Tensor]:
    return dict(zip(layers, block[:, side].unsqueeze(1).unbind(), strict=True))
