"""A prompt's blocks as far as somebody knows them, and who knows how much.

Whoever knows a block knows all before it: so the end is sought by halves, and so is where one device more knows what
comes before. A prompt of 128 blocks takes some ten looks, not 128, into a map whose entries lie all over the memory.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from kvcluster.index.events import NAME_BYTES

Mask = Callable[[bytes], int]  # the devices of a block


@dataclass(frozen=True, slots=True)
class Level:
    """The devices of `mask` know so many blocks or are about to; those of `told` have said so themselves."""

    blocks: int
    mask: int
    told: int


class Path:
    """Of one prompt, `told` by devices or `expected` to be; only devices `among` these count."""

    def __init__(self, *, told: Mask, expected: Mask, among: int) -> None:
        self._told = told
        self._expected = expected
        self._among = among
        self._names: list[bytes] = []
        self.blocks = 0  # so many of them are known, or are about to be

    def follow(self, digests: Iterator[bytes], stride: int) -> None:
        """Look at the prompt's blocks, so many at once, until one is not known."""
        begin = 0
        while names := [digest[:NAME_BYTES] for digest in islice(digests, stride)]:
            begin = len(self._names)
            self._names += names
            if not self._mask(len(self._names)):
                break
        self.blocks = begin + bisect_left(range(begin, len(self._names)), True, key=lambda at: not self._mask(at + 1))

    def levels(self) -> Iterator[Level]:
        """Who knows how much, the most first."""
        blocks = self.blocks
        while blocks:
            mask = self._mask(blocks)
            yield Level(blocks, mask, self._told(self._names[blocks - 1]) & self._among)
            if mask == self._among:
                return
            blocks = bisect_left(range(1, blocks), True, key=lambda at: self._mask(at) == mask)
        yield Level(0, self._among, self._among)

    def behind(self, blocks: int, digests: Iterator[bytes], most: int) -> list[bytes]:
        """The names of so many of its blocks, at most: the first that no device has told of and those that follow, from
        that many `blocks` on where they come before. Some of them may be hashed for it.
        """
        told = bisect_left(range(self.blocks), True, key=lambda at: not self._told(self._names[at]) & self._among)
        end = min(told, blocks) + most
        missing = max(0, end - len(self._names))
        self._names += [digest[:NAME_BYTES] for digest in islice(digests, missing)]
        return self._names[end - most : end]

    def _mask(self, blocks: int) -> int:
        """Who knows so many, or is about to."""
        name = self._names[blocks - 1]
        return (self._told(name) | self._expected(name)) & self._among
