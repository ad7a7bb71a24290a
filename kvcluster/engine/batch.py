"""One step's work: the new tokens of every sequence, packed into one row of the model's input.

Nothing is padded. Whatever the layers have in common (positions, where each slice writes, what it reads, its mask)
is prepared here once a step, so that the attention function only computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvcluster.geometry.layout import Side
from kvcluster.tensors.views import KvViews


@dataclass(frozen=True, slots=True)
class Slice:
    """New tokens of one sequence, at positions [start, start + len(token_ids)); K and V before `start` are written.

    `sample`: the logits after the last of them are wanted.
    """

    kv: KvViews
    start: int
    token_ids: Sequence[int]
    sample: bool

    def __post_init__(self) -> None:
        if not self.token_ids or self.start < 0:
            raise ValueError("a slice holds at least 1 token and starts at 0 or later")
        if self.stop > self.kv.tokens:
            raise ValueError(f"tokens up to {self.stop} do not lie in the {self.kv.tokens} that are committed")

    @property
    def stop(self) -> int:
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Reads:
    """What one slice attends to, by model layer index: K and V as [1, kv_heads, keys, head_dim].

    `mask` is added to the scores, [new tokens, keys]. A single token has none: it sees every key that it reads.
    """

    k: tuple[torch.Tensor, ...]
    v: tuple[torch.Tensor, ...]
    mask: torch.Tensor | None


class PackedBatch:
    """The slices of one step, as the model takes them. It lives for that step only."""

    def __init__(self, slices: Sequence[Slice], dtype: torch.dtype) -> None:
        if not slices:
            raise ValueError("a batch holds at least 1 slice")
        self._slices = slices
        self._dtype = dtype
        self._reads: dict[int | None, tuple[Reads, ...]] = {}
        self.sizes = [len(piece.token_ids) for piece in slices]
        self.token_ids = torch.tensor([[token for piece in slices for token in piece.token_ids]])
        self.positions = torch.tensor([[at for piece in slices for at in range(piece.start, piece.stop)]])
        writes = [piece.kv.narrowed(piece.start, piece.stop).by_layer(lambda block: block) for piece in slices]
        self.writes = tuple(zip(*writes, strict=True))
        """By layer, then by slice: [2 (K, V), kv_heads, new tokens, head_dim]."""

    def sampled_rows(self) -> torch.Tensor:
        """The rows whose logits are wanted, in slice order."""
        ends = torch.tensor(self.sizes).cumsum(0) - 1
        return ends[torch.tensor([piece.sample for piece in self._slices])]

    def reads(self, window: int | None) -> tuple[Reads, ...]:
        """What each slice attends to in layers that see the last `window` tokens, themselves included (None: all)."""
        if window not in self._reads:
            self._reads[window] = tuple(_reads(piece, window, self._dtype) for piece in self._slices)
        return self._reads[window]


def _reads(piece: Slice, window: int | None, dtype: torch.dtype) -> Reads:
    first = 0 if window is None else max(0, piece.start + 1 - window)
    keys = piece.kv.narrowed(first, piece.stop)
    k = keys.by_layer(lambda block: block[:, Side.K].unsqueeze(1))
    v = keys.by_layer(lambda block: block[:, Side.V].unsqueeze(1))
    return Reads(k, v, None if len(piece.token_ids) == 1 else _mask(piece, first, window, dtype))


def _mask(piece: Slice, first: int, window: int | None, dtype: torch.dtype) -> torch.Tensor:
    """0 where the token at position i sees the key at position j (0 <= i - j < window), minus infinity elsewhere."""
    positions = torch.arange(first, piece.stop)
    distance = positions[piece.start - first :, None] - positions
    hidden = distance < 0 if window is None else (distance < 0) | (distance >= window)
    return torch.zeros(distance.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))
