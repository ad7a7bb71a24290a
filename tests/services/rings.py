"""Memories with a full layer and two sliding ones, computed as a model does, and what of them is not as computed."""

from __future__ import annotations

import itertools

import torch

from kvcluster.geometry.layout import Layout
from kvcluster.geometry.model import KvGeometry, LayerGroup
from kvcluster.services.sequence import SequenceMemory, SequenceSpec
from tests.services.world import GRANULE, World

WINDOW, CHUNK = 50, 32
GEOMETRY = KvGeometry(
    (LayerGroup((0,), kv_heads=1, head_dim=24), LayerGroup((1, 2), kv_heads=1, head_dim=24, window_tokens=WINDOW)), 4
)  # rows of 192 and 384 bytes: 21 1/3 and 10 2/3 tokens a granule


def opened(world: World, *, layout: Layout = Layout.TOKEN_MAJOR, chunk_tokens: int = CHUNK) -> SequenceMemory:
    return world.device.port.memory(SequenceSpec(GEOMETRY, layout, 400, chunk_tokens=chunk_tokens))


def row(layer: int, side: int, token: int) -> float:
    return float(1000 * layer + 500 * side + token)


def compute(memory: SequenceMemory, start: int, stop: int) -> None:
    """Write the rows of tokens [start, stop) as a model does, a chunk at a time. The first may lie in sealed memory."""
    memory.commit(stop, memory.grant(stop))
    views = memory.views(torch.float32)
    for first in range(start, stop, memory.spec.chunk_tokens):
        last = min(first + memory.spec.chunk_tokens, stop)
        now = views.narrowed(first, last)
        for side, tensors in enumerate((now.k, now.v)):
            for layer, tensor in enumerate(tensors):
                expected = torch.tensor([row(layer, side, token) for token in range(first, last)])
                tensor[:] = expected[None, :, None]


def wrong_rows(memory: SequenceMemory, stop: int) -> list[tuple[int, int, int]]:
    """Layer, side and token of every row that the next token needs and that is not what was computed."""
    views, found = memory.views(torch.float32), []
    for layer in range(3):
        first = 0 if layer == 0 else max(0, stop + 1 - WINDOW)
        span = views.groups[min(layer, 1)].narrowed(first, stop).block[max(0, layer - 1)]
        for side in range(2):
            expected = torch.tensor([row(layer, side, token) for token in range(first, stop)])
            wrong = (span[side, 0] != expected[:, None]).any(dim=1)
            found += [(layer, side, first + int(place)) for place in wrong.nonzero()]
    return found


def compute_behind(memory: SequenceMemory, start: int, stop: int) -> None:
    """As `compute`, but for the row that straddles the sealed end: its first bytes are there already."""
    memory.commit(stop, memory.grant(stop))
    views = memory.views(torch.float32)
    sealed = memory.sealed[0] * GRANULE // 4  # floats of the only full fragment
    for first in range(start, stop, CHUNK):
        last = min(first + CHUNK, stop)
        for group in views.groups:
            block = group.narrowed(first, last).block
            for layer, side, token in itertools.product(range(len(group.layers)), range(2), range(first, last)):
                expected = row(group.layers[layer], side, token)
                vector = block[layer, side, 0, token - first]
                skipped = 0
                if group.window_tokens is None:
                    skipped = min(24, max(0, sealed - (token * 48 + side * 24)))
                vector[skipped:] = expected
