"""Memories that share: who publishes, what is sealed of them and what is their own."""

from __future__ import annotations

import ctypes

from kvcluster.geometry.layout import Layout
from kvcluster.services.prefix import Prefix
from kvcluster.services.sequence import SequenceMemory
from tests.services.world import CHUNK, PATTERN, World, pieces

M = 90  # tokens of a prefix: five whole granules of 16 tokens and a part, token-major


def published(world: World, tokens: int = M, *, layout: Layout = Layout.TOKEN_MAJOR) -> tuple[SequenceMemory, Prefix]:
    """A memory of so many tokens, filled, and the prefix that it has made of them."""
    owner = world.grown(tokens, layout=layout)
    return owner, owner.publish(tokens)


def sealed_pieces(memory: SequenceMemory) -> list[tuple[int, int]]:
    """Address and bytes of what is mapped for reading in each fragment."""
    return [(address, sealed) for (address, _), sealed in _cut(memory)]


def own_pieces(memory: SequenceMemory) -> list[tuple[int, int]]:
    """Address and bytes of the rest."""
    return [(address + sealed, size - sealed) for (address, size), sealed in _cut(memory) if size > sealed]


def fill_own(memory: SequenceMemory) -> None:
    """A pattern in every byte that may be written."""
    for address, size_bytes in own_pieces(memory):
        for start in range(0, size_bytes, CHUNK):
            ctypes.memmove(address + start, PATTERN[start // CHUNK % 251 :], min(CHUNK, size_bytes - start))


def _cut(memory: SequenceMemory) -> list[tuple[tuple[int, int], int]]:
    shape = memory.holdings.shape
    sealed = [
        sealed * shape.granule_bytes
        for group, count, sealed in zip(shape.groups, memory.windows, memory.sealed, strict=True)
        for _ in range(group.fragments)
        if count
    ]
    return list(zip(pieces(memory), sealed, strict=True))
