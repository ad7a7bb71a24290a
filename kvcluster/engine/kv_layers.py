"""The layers of a `KVCache`: each says how many tokens it has, writes new ones in place, and returns views.

What a layer answers (lengths, mask sizes, refusals of a crop) is what transformers' DynamicLayer and
DynamicSlidingWindowLayer answer, of 5.24; where the K and V lie is all that differs. A layer with a window keeps a ring
of `W + chunk - 1` tokens, whose windows are contiguous: it is copied only where a prefill is longer than that.
Not for torch.compile.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import CacheLayerMixin

from kvcluster.engine.kv_rows import KvRows

Pair = tuple[torch.Tensor, torch.Tensor]


class KvLayer(CacheLayerMixin):  # type: ignore[misc]
    """A layer that keeps every token: `tokens` of them."""

    is_compileable = False
    is_croppable = True
    is_sliding = False

    def __init__(self, index: int, rows: KvRows) -> None:  # not the mixin's: it keeps tensors, which would go stale
        self.index = index
        self.tokens = 0
        self.first = 0  # the oldest token that is there
        self._rows = rows

    @property
    def is_initialized(self) -> bool:
        return self.tokens > 0

    @property
    def keys(self) -> torch.Tensor | None:
        """K of the tokens that are there, in place; None for none. Not to be used after the next change."""
        return self._kept()[0] if self.tokens else None

    @property
    def values(self) -> torch.Tensor | None:
        """V, likewise."""
        return self._kept()[1] if self.tokens else None

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing: memory is asked for with the first tokens."""

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> Pair:
        """Write new K and V, [rows, heads, tokens, head_dim]; returns views of all that the new tokens see.

        Raises as `KvRows.make_room`: then nothing was written, and the layer is as it was.
        """
        self._rows.make_room(key_states, self.tokens)
        k, v = self._rows.block(self.index, 0, self.tokens + key_states.shape[-2])
        k[:, :, self.tokens :].copy_(key_states)
        v[:, :, self.tokens :].copy_(value_states)
        self.tokens += key_states.shape[-2]
        return k, v

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.tokens + query_length, 0

    def get_seq_length(self) -> int:
        return self.tokens

    def get_max_length(self) -> int:
        return self._rows.memory.max_tokens

    def check_crop(self, tokens_to_remove: int) -> None:
        """Raises ValueError where tokens are to be kept, and not removed: that is a positive number."""
        if tokens_to_remove > 0:
            raise ValueError(f"crop takes minus the number of tokens to remove, or 0, not {tokens_to_remove}")

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last tokens; the memory stays (`KVCache.crop` gives it back). Raises as `check_crop`."""
        self.check_crop(tokens_to_remove)
        self.tokens = max(0, self.tokens + tokens_to_remove)

    def take(self, indices: torch.Tensor) -> None:
        """Row i becomes what row `indices[i]` was; only rows that change are copied. There is room for all of them."""
        if not self.tokens or not len(indices):
            return
        most = max(len(indices), self._rows.rows)
        block = self._rows.block(self.index, self.first, self.tokens - self.first, most)
        targets = torch.arange(len(indices))
        changed = targets != indices
        sources, targets = indices[changed].to(block.device), targets[changed].to(block.device)
        block.index_copy_(1, targets, block.index_select(1, sources))

    def reset(self) -> None:
        """Forget all tokens."""
        self.tokens = self.first = 0

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self.take(beam_idx.cpu())

    def _kept(self) -> torch.Tensor:
        return self._rows.block(self.index, self.first, self.tokens - self.first)


class KvSlidingLayer(KvLayer):
    """A layer that sees the last `sliding_window` tokens. With `record_past` it keeps what its ring holds."""

    is_sliding = True

    def __init__(self, index: int, rows: KvRows, *, sliding_window: int) -> None:
        super().__init__(index, rows)
        self.sliding_window = sliding_window
        self.record_past = False

    def activate_past_recording(self) -> None:
        """From now on a crop can go back beyond the window's beginning, as far as the ring holds it."""
        self.record_past = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> Pair:
        """As `KvLayer.update`. A copy is returned where the window and the new tokens are more than the ring holds."""
        self._rows.make_room(key_states, self.tokens)
        new, seen = key_states.shape[-2], min(self.tokens - self.first, self.sliding_window - 1)
        ring = self._rows.ring_tokens(self.index)
        if seen + new <= ring:
            k, v = self._rows.block(self.index, self.tokens - seen, seen + new)
            k[:, :, seen:].copy_(key_states)
            v[:, :, seen:].copy_(value_states)
        else:
            k, v = self._beside(seen, key_states, value_states)
        self.tokens += new
        kept = ring if self.record_past else self.sliding_window - 1
        self.first = max(self.first, self.tokens - kept)
        return k, v

    def _beside(self, seen: int, key_states: torch.Tensor, value_states: torch.Tensor) -> Pair:
        """What is seen, copied before the last of the new tokens are written over it."""
        past_k, past_v = self._rows.block(self.index, self.tokens - seen, seen)
        both = torch.cat((past_k, key_states), dim=-2), torch.cat((past_v, value_states), dim=-2)
        new = key_states.shape[-2]
        last = min(new, self._rows.ring_tokens(self.index))
        k, v = self._rows.block(self.index, self.tokens + new - last, last)
        k.copy_(key_states[:, :, new - last :])
        v.copy_(value_states[:, :, new - last :])
        return both

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        seen = min(self.tokens, self.sliding_window - 1)
        return seen + query_length, self.tokens - seen

    def get_max_length(self) -> int:
        return self.sliding_window

    def check_crop(self, tokens_to_remove: int) -> None:
        """Raises as `KvLayer.check_crop`, and RuntimeError where the window before the crop is not there any more."""
        super().check_crop(tokens_to_remove)
        if self.tokens < self.sliding_window:
            return
        if not self.record_past:
            raise RuntimeError("the window is full: call activate_past_recording before tokens are to be cropped")
        if max(0, self.tokens + tokens_to_remove - self.sliding_window + 1) < self.first:
            most = self.tokens - self.first - self.sliding_window + 1
            raise RuntimeError(f"{-tokens_to_remove} tokens are to be cropped, and {max(0, most)} of them can be")

    def crop(self, tokens_to_remove: int) -> None:
        """As `KvLayer.crop`; what the window does not need any more is forgotten too."""
        self.check_crop(tokens_to_remove)
        is_full = self.tokens >= self.sliding_window
        self.tokens = max(0, self.tokens + tokens_to_remove)
        if is_full:
            self.first = max(0, self.first, self.tokens - self.sliding_window + 1)
