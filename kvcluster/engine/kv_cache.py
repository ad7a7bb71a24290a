"""A transformers Cache on elastic memory: `model.generate(..., cache=KVCache(device, model.config, max_tokens=4096))`.

Every row of the batch is one request of the device, with an address that never moves; it grows on demand, without a
copy, and a row that is not needed is given back. What it answers is what DynamicCache answers, with a most of tokens
and rows as StaticCache has. transformers' own attention reads it, as one strided tensor a layer, so it is not tied to
the families that our engine computes: any model whose layers see every token or a window (give a `KvGeometry`).
transformers 5.24 calls the argument `cache`; `past_key_values` still works, with a warning of its deprecation.

Not for torch.compile, for training, or for several threads at a time; not to be copied or pickled.
"""

from __future__ import annotations

from typing import Any, Never, Self

import torch
from transformers.cache_utils import Cache

from kvcluster.engine.architecture import geometry_of
from kvcluster.engine.kv_layers import KvLayer, KvSlidingLayer
from kvcluster.engine.kv_rows import KvRows, OpensBatches
from kvcluster.geometry.model import KvGeometry


class KVCache(Cache):  # type: ignore[misc]
    """K and V of `batch` rows at most, of `max_tokens` tokens each, on memory of `device`: a LocalDevice or DevicePort.

    `model` is the model's configuration, or what it keeps a token; with beams, `batch` counts each. `dtype` is the
    configuration's where nobody says otherwise. Opening it reserves address, and takes no memory. What `update` returns
    and what `layers` show are views: they are not to be used after a crop, a change of rows, a reset, or the close.

    Raises (whatever writes): see `KvRows.make_room`. OutOfBudget comes before anything is written; the cache is as it
    was, and the same call may be made again.
    """

    layers: list[KvLayer]

    def __init__(
        self,
        device: OpensBatches,
        model: Any,
        *,
        max_tokens: int,
        batch: int = 1,
        dtype: torch.dtype | None = None,
        tenant: str = "",
    ) -> None:
        """Reserve the address.

        Raises:
            UnsupportedModel: no geometry can be read from the configuration: give one. Nothing is open.
            ValueError: no tokens or rows, or a geometry that does not name layers from 0 on. Nothing is open.
            LimitReached, DriverError: no address. Nothing is open.
        """
        geometry = model if isinstance(model, KvGeometry) else _geometry(model, dtype)
        windows = _windows(geometry)
        self._rows = KvRows(device.open_batch(geometry, rows=batch, max_tokens=max_tokens, tenant=tenant))
        super().__init__(
            layers=[
                KvLayer(index, self._rows)
                if window is None
                else KvSlidingLayer(index, self._rows, sliding_window=window)
                for index, window in enumerate(windows)
            ]
        )

    @property
    def address(self) -> int:
        """Where the first row begins; the same for as long as the cache is open."""
        return self._rows.memory.address

    @property
    def committed_bytes(self) -> int:
        """The memory that it has now."""
        return self._rows.memory.committed_bytes

    @property
    def batch_size(self) -> int:
        """The rows in use; -1 for none."""
        return self._rows.rows or -1

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last `-tokens_to_remove` tokens; memory behind what is left goes back, but for a small margin.

        Raises:
            ValueError: a positive number. Nothing changed.
            RuntimeError: a layer's window is full, and what lies before it was not recorded. Nothing changed.
            Quarantined: memory could not be given back, and stays charged; the tokens are removed, and the cache may
                take no more.
        """
        for layer in self.layers:
            layer.check_crop(tokens_to_remove)
        super().crop(tokens_to_remove)
        if self._rows.rows:
            self._rows.keep(self._rows.rows, self._tokens())

    def reset(self) -> None:
        """Forget everything, and give all memory back; the address stays. Raises Quarantined as `crop` does."""
        super().reset()
        self._rows.keep(0, 0)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Row i becomes what row `beam_idx[i]` was. Only rows that change are copied. Raises as `_take`."""
        self._take(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each row `repeats` times. Raises as `_take`."""
        self._take(torch.arange(self._rows.rows).repeat_interleave(repeats))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep these rows, in this order; the others' memory goes back. Raises as `_take`."""
        index = indices.cpu() if isinstance(indices, torch.Tensor) else indices
        self._take(torch.arange(self._rows.rows)[index])

    def close(self) -> None:
        """Give everything back. Closing again does nothing.

        Raises:
            Quarantined, DriverError: a row could not be given back whole: what could not stays charged.
        """
        self._forget()
        self._rows.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Never:
        raise TypeError("a KVCache is memory of this process: it cannot be copied or pickled")

    def _take(self, rows: torch.Tensor) -> None:
        """Row i becomes what row `rows[i]` was.

        Raises:
            IndexError: there is no such row. Nothing changed.
            ValueError: more rows than there can be. Nothing changed.
            OutOfBudget: no memory for more rows. Nothing changed. Other errors as `BatchMemory.commit`.
            Quarantined: memory of rows that are gone could not be given back.
        """
        tokens, before = self._tokens(), self._rows.rows
        if not tokens:
            return
        indices = torch.arange(before)[rows.cpu()]
        self._rows.grow(max(before, len(indices)), tokens)
        for layer in self.layers:
            layer.take(indices)
        if not len(indices):
            self._forget()
        if len(indices) < before:
            self._rows.keep(len(indices), self._tokens())

    def _forget(self) -> None:
        for layer in self.layers:
            layer.reset()

    def _tokens(self) -> int:
        return max(layer.tokens for layer in self.layers)


def _geometry(config: Any, dtype: torch.dtype | None) -> KvGeometry:
    own = config.get_text_config(decoder=True)
    return geometry_of(own, dtype or getattr(own, "dtype", None) or torch.float32)


def _windows(geometry: KvGeometry) -> list[int | None]:
    """By layer: how many tokens it sees; None for all.

    Raises:
        ValueError: a layer is missing.
    """
    windows = {layer: group.window_tokens for group in geometry.groups for layer in group.layers}
    if sorted(windows) != list(range(len(windows))):
        raise ValueError(f"a cache has every layer from 0 on, not {sorted(windows)}")
    return [windows[layer] for layer in range(len(windows))]
