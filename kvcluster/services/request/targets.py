"""Where a generation shares what it has computed, and who waits for it: token counts, and no messages. Pure.

A generation stops at a target, its memory is shared up to there, and it goes on. Targets are

    the end of its prompt, where there are rings        a ring is overwritten, so that later is too late
    what others had named before it                     they know the same tokens, and nobody shares them yet
    what a request that waits has in common with it     computed once, instead of twice side by side

Tokens that fill no whole granule cannot be shared and are never a target, nor is what would spare too little. One that
waits is held back by an older one only, and only while that computes what both begin with: who is, is decided again at
each step boundary.
"""

from __future__ import annotations

import sys
from bisect import insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcluster.geometry.residency import Shape
from kvcluster.index.token_chain import common_tokens

if TYPE_CHECKING:
    from kvcluster.services.request.generation import Generation


class Targets:
    """The targets of one generation, nearest first. `shared` tokens of it can be had by others as it is."""

    def __init__(self) -> None:
        self.shared = 0
        self._tokens: list[int] = []

    def __iter__(self) -> Iterator[int]:
        return iter(tuple(self._tokens))

    def add(self, tokens: int) -> None:
        if tokens not in self._tokens:
            insort(self._tokens, tokens)

    def distance(self, held: int) -> int:
        """Tokens from `held` to the next target: 0 where it is reached."""
        return max(0, self._tokens[0] - held) if self._tokens else sys.maxsize

    def reached(self, held: int) -> int:
        """The furthest target within `held` tokens; 0 where none is."""
        return max((tokens for tokens in self._tokens if tokens <= held), default=0)

    def pass_by(self, held: int) -> None:
        """Those within `held` tokens are dealt with."""
        self._tokens = [tokens for tokens in self._tokens if tokens > held]


@dataclass(frozen=True, slots=True)
class Worth:
    """What sharing gives, by the shape of the memory, and the `least` that it must give: see `RequestSettings`."""

    shape: Shape
    least: int = 1

    def reusable_tokens(self, tokens: int) -> int:
        """Where one would begin to compute who joined a prefix of `tokens` tokens; 0 where none can be."""
        return max(0, self.shape.reusable_tokens(self.shape.shared_windows(tokens), tokens)) if tokens else 0

    def is_enough(self, tokens: int, shared: int) -> bool:
        """Whether to share `tokens` tokens, when `shared` can be had by others already."""
        return self.reusable_tokens(tokens) - shared >= self.least


def set_out(generation: Generation, worth: Worth, known_tokens: int) -> None:
    """It begins to compute after what it joined; others know the first `known_tokens` of its tokens.

    What was a target before, for somebody who waits, is one still if it lies further than what was joined.
    """
    before, generation.targets = generation.targets, Targets()
    generation.targets.shared = generation.joined
    for tokens in (*before, known_tokens, len(generation.order.prompt) if worth.shape.has_rings else 0):
        if tokens > generation.held and worth.is_enough(tokens, generation.joined):
            generation.targets.add(tokens)


def leader_of(generation: Generation, others: Iterable[Generation], worth: Worth) -> tuple[Generation, int] | None:
    """Who computes, or shares, the beginning of this one's prompt now, and how many tokens both begin with.

    Nobody, where it has most of that from somebody who has shared it already.
    """
    alike = [(other, common) for other in others if (common := _common_tokens(generation, other))]
    shared = max((min(worth.reusable_tokens(common), other.targets.shared) for other, common in alike), default=0)
    for other, common in alike:
        is_before = other.held < common or not other.targets.distance(other.held)
        if is_before and worth.is_enough(common, shared):
            return other, common
    return None


def _common_tokens(one: Generation, other: Generation) -> int:
    """With how many tokens both prompts begin, where what one computes is good for the other."""
    if not one.order.cache_root or one.order.cache_root != other.order.cache_root:
        return 0
    return common_tokens(one.order.packed_prompt, other.order.packed_prompt)
