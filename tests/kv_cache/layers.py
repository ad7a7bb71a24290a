"""A small cache of three layers, one of which sees a window, and what DynamicCache has of the same."""

from __future__ import annotations

import torch
from transformers.cache_utils import Cache, DynamicLayer, DynamicSlidingWindowLayer

from kvcluster import KvGeometry, LayerGroup

WINDOW = 4
HEADS, DIM = 2, 4
LAYERS = 3
GEOMETRY = KvGeometry((LayerGroup((0, 2), HEADS, DIM), LayerGroup((1,), HEADS, DIM, WINDOW)), 4)
"""A granule of 4 KiB has 32 tokens of the first group; a ring holds 259 tokens and some."""


def dynamic() -> Cache:
    return Cache(layers=[DynamicLayer(), DynamicSlidingWindowLayer(WINDOW), DynamicLayer()])


def rows(count: int, tokens: int, seed: int = 1) -> torch.Tensor:
    """New K or V of one layer."""
    return torch.rand((count, HEADS, tokens, DIM), generator=torch.Generator().manual_seed(seed))


def write(cache: Cache, count: int, tokens: int, seed: int = 1) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """A step of all layers; what each attends to."""
    return [
        cache.update(rows(count, tokens, seed + layer), rows(count, tokens, seed - layer - 1), layer)
        for layer in range(LAYERS)
    ]


def content(cache: Cache) -> list[torch.Tensor | None]:
    """A copy of what the layers hold."""
    held = [part for layer in cache.layers for part in (layer.keys, layer.values)]
    return [None if part is None else part.clone() for part in held]
