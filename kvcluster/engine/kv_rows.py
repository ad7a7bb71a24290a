"""What the layers of one `KVCache` share: the memory of a batch, how many rows are in use, and the views of it.

Growth is asked for once for all layers, before the first of them writes: it takes a few tokens more than are needed
where they fit, so that a step does not ask for each. What a crop leaves is given back behind twice that margin, so that
drafting and taking back a few tokens (assisted decoding) makes no driver call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from kvcluster.errors import NotAllowed, OutOfBudget

if TYPE_CHECKING:
    from kvcluster.geometry.model import KvGeometry
    from kvcluster.tensors.batch_views import BatchViews

MARGIN_TOKENS = 16


class BatchMemory(Protocol):
    """The memory of a batch: `services.batch_memory.BatchMemory`."""

    @property
    def rows(self) -> int: ...

    @property
    def max_tokens(self) -> int: ...

    @property
    def address(self) -> int: ...

    @property
    def is_open(self) -> bool: ...

    @property
    def is_host_memory(self) -> bool: ...

    @property
    def committed_bytes(self) -> int: ...

    def tokens(self, rows: int) -> int: ...

    def commit(self, rows: int, tokens: int) -> None: ...

    def trim(self, rows: int, tokens: int) -> None: ...

    def views(self, dtype: torch.dtype, device: torch.device) -> BatchViews: ...

    def close(self) -> None: ...


class OpensBatches(Protocol):
    """Whoever has memory for a batch: a LocalDevice, or a DevicePort."""

    def open_batch(self, geometry: KvGeometry, *, rows: int, max_tokens: int, tenant: str = "") -> BatchMemory: ...


class KvRows:
    """`rows` are in use, 0 before the first write and after a reset. For one thread at a time."""

    def __init__(self, memory: BatchMemory) -> None:
        self.memory = memory
        self.rows = 0
        self._tokens = 0  # that each row in use has room for
        self._views: BatchViews | None = None
        self._kind: tuple[torch.dtype, torch.device] | None = None

    def check_new(self, keys: torch.Tensor, before: int) -> None:
        """`keys` can be written behind `before` tokens.

        Raises:
            NotAllowed: the memory is closed.
            ValueError: another number of rows than before, or more tokens than there can be; a device that cannot read
                the memory; or K and V that gradients are wanted of.
        """
        rows, tokens, most = keys.shape[0], before + keys.shape[-2], self.memory.max_tokens
        if not self.memory.is_open:
            raise NotAllowed(reason="the cache is closed")
        if keys.requires_grad:
            raise ValueError("this cache keeps no gradients: compute under torch.no_grad()")
        if tokens > most:
            raise ValueError(f"the cache holds at most {most} tokens a row, not {tokens}: open it with more max_tokens")
        if self.rows and rows != self.rows:
            raise ValueError(f"the cache holds {self.rows} rows, and {rows} are to be written: reset it first")
        if self.memory.is_host_memory != (keys.device.type == "cpu"):
            raise ValueError(f"the cache's memory is not of {keys.device}, where the model computes")

    def make_room(self, keys: torch.Tensor, before: int) -> None:
        """Room for `keys`, [rows, heads, tokens, dim], behind `before` tokens.

        Raises as `check_new` and `grow`, and ValueError where the element type or the device is another than before.
        """
        self.check_new(keys, before)
        kind = (keys.dtype, keys.device)
        if self._views is None or self._kind != kind:
            if self._kind not in (None, kind) and before:
                raise ValueError(f"the cache holds {self._kind}, and {kind} are to be written: reset it first")
            self._views, self._kind = self.memory.views(*kind), kind
        self.grow(keys.shape[0], before + keys.shape[-2])

    def grow(self, rows: int, tokens: int) -> None:
        """Memory for `tokens` tokens of `rows` rows.

        Raises as `BatchMemory.commit`, and ValueError where there cannot be so many rows; then nothing changed.
        """
        if rows > (most := self.memory.rows):
            raise ValueError(f"the cache holds at most {most} rows, not {rows}: open it with a larger batch")
        if rows > self.rows or tokens > self._tokens:
            self._commit(rows, tokens)
            self.rows, self._tokens = max(rows, self.rows), self.memory.tokens(max(rows, self.rows))

    def keep(self, rows: int, tokens: int) -> None:
        """So many are left; the memory of the others goes back. Raises as `BatchMemory.trim`; they are left then, too.

        None of either gives everything back.
        """
        most = min(self.memory.max_tokens, tokens + 2 * MARGIN_TOKENS)
        self.rows = rows if tokens else 0
        try:
            self.memory.trim(self.rows, most if self.rows else 0)
        finally:
            self._tokens = self.memory.tokens(self.rows) if self.rows else 0

    def block(self, layer: int, first: int, count: int, rows: int = 0) -> torch.Tensor:
        """Tokens [first, first + count) of the rows in use, or of so many: [2 (K, V), rows, heads, count, dim].

        Raises:
            NotAllowed: the memory is closed, or nothing was written yet.
        """
        if self._views is None or not self.memory.is_open:
            raise NotAllowed(reason="the cache is closed, or empty")
        return self._views.block(layer, rows or self.rows, first, count)

    def ring_tokens(self, layer: int) -> int:
        """How many of its last tokens a layer with a window holds."""
        assert self._views is not None  # `make_room` was called
        return self._views.ring_tokens(layer)

    def close(self) -> None:
        """Give everything back. Raises as `BatchMemory.close`."""
        self.rows = self._tokens = 0
        self._views = None
        self.memory.close()

    def _commit(self, rows: int, tokens: int) -> None:
        """With the margin where it fits."""
        wanted = min(self.memory.max_tokens, tokens + MARGIN_TOKENS)
        try:
            self.memory.commit(rows, wanted)
        except OutOfBudget:
            if wanted == tokens:
                raise
            self.memory.commit(rows, tokens)
