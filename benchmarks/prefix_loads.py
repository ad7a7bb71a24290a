"""Loads of prompts in blocks for `bench_prefix_policy`: a recorded trace, or made ones, each from its seed.

A request is the ids of its prompt's blocks, equal ids for equal beginnings, and how many tokens each has. The made
loads are what caches meet, each as pure as it comes, for a policy that is good at one of them may fail at the next:

    recency   a document goes on being asked about, the later its last time the likelier (Pareto depths of a stack)
    zipf      4,000 documents whose popularity never changes
    loop      600 documents, one after the other, again and again
    loop_zipf 400 in a loop, between others of fixed popularity
    chats     conversations in turns: a system prompt of 20, a user who thinks for log-normal times and leaves at any
              turn, answers that become part of the next prompt; and documents that come once
    shifts    fixed popularity, dealt anew every 1,500 requests
    slide     documents are born, are hot for a while, and cool down
    phases    a quarter each of recency, loop, zipf and chats
"""

from __future__ import annotations

import json
import random
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate, count
from pathlib import Path

BLOCK_TOKENS = 512  # of a trace that says nothing else


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt: its blocks, and how many tokens each of them has."""

    blocks: tuple[int, ...]
    tokens: tuple[int, ...]


Load = Sequence[Request]


def recorded(trace: Path) -> list[Request]:
    """Of a file with a line of JSON a request: `hash_ids`, `input_length`, and `block_size` where it is not 512."""
    with trace.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [request(r["hash_ids"], r["input_length"], r.get("block_size", BLOCK_TOKENS)) for r in rows]


def request(blocks: Sequence[int], input_tokens: int, block_tokens: int = BLOCK_TOKENS) -> Request:
    """All blocks are full but for the last one."""
    tokens = [max(1, min(block_tokens, input_tokens - at * block_tokens)) for at in range(len(blocks))]
    return Request(tuple(blocks), tuple(tokens))


def made(name: str, *, requests: int, seed: int = 1) -> list[Request]:
    """One of `MADE`."""
    prompts = MADE[name](_Maker(seed), requests)
    return [request(blocks, len(blocks) * BLOCK_TOKENS) for blocks, _ in zip(prompts, range(requests), strict=False)]


Blocks = list[int]


class _Maker:
    """Chance, and blocks that nobody had before."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self._fresh = count()

    def blocks(self, fewest: int, most: int) -> Blocks:
        return [next(self._fresh) for _ in range(self.chance.randint(fewest, most))]

    def documents(self, number: int, fewest: int = 5, most: int = 40) -> list[Blocks]:
        return [self.blocks(fewest, most) for _ in range(number)]

    def popular(self, number: int, exponent: float) -> Callable[[], int]:
        """Draws of one of so many, by Zipf's law."""
        sums = list(accumulate((rank + 1) ** -exponent for rank in range(number)))
        return lambda: bisect_left(sums, self.chance.random() * sums[-1])


def _recency(maker: _Maker, _: int) -> Iterator[Blocks]:
    stack: list[Blocks] = []
    while True:
        depth = int(maker.chance.paretovariate(0.6))
        stack.append(stack.pop(-depth) if depth <= len(stack) else maker.blocks(5, 40))
        yield stack[-1]


def _zipf(maker: _Maker, _: int) -> Iterator[Blocks]:
    documents, draw = maker.documents(4_000), maker.popular(4_000, 0.9)
    while True:
        yield documents[draw()]


def _loop(maker: _Maker, _: int) -> Iterator[Blocks]:
    documents = maker.documents(600, 10, 30)
    while True:
        yield from documents


def _loop_zipf(maker: _Maker, _: int) -> Iterator[Blocks]:
    ring, others, draw = maker.documents(400, 20, 20), maker.documents(2_000, 20, 20), maker.popular(2_000, 1.0)
    turns = count()
    while True:
        yield ring[next(turns) % 400] if maker.chance.random() < 0.5 else others[draw()]


def _chats(maker: _Maker, _: int) -> Iterator[Blocks]:
    systems, draw, chance = maker.documents(20, 1, 8), maker.popular(20, 1.0), maker.chance
    thinking: list[tuple[float, int, Blocks]] = []
    order = count()

    def thinks(blocks: Blocks, now: int, stays: float) -> None:
        if chance.random() < stays:
            heappush(thinking, (now + 400 * chance.lognormvariate(0, 1), next(order), blocks))

    for now in count():
        while thinking and thinking[0][0] <= now:
            blocks = heappop(thinking)[2] + maker.blocks(1, 5)
            yield blocks
            thinks(blocks, now, 0.7)
        if chance.random() < 0.4:
            blocks = systems[draw()] + maker.blocks(1, 20)
            yield blocks
            thinks(blocks, now, 0.5)
        elif chance.random() < 0.3:
            yield maker.blocks(10, 80)


def _shifts(maker: _Maker, _: int) -> Iterator[Blocks]:
    documents, draw = maker.documents(3_000, 5, 30), maker.popular(3_000, 1.0)
    while True:
        maker.chance.shuffle(documents)
        for _ in range(1_500):
            yield documents[draw()]


def _slide(maker: _Maker, _: int) -> Iterator[Blocks]:
    born: list[tuple[Blocks, float]] = [(maker.blocks(5, 40), 1.0)]
    while True:
        if maker.chance.random() < 0.15:
            born = [*born[-399:], (maker.blocks(5, 40), maker.chance.paretovariate(1))]
        heat = [warmth * 0.98**age for age, (_, warmth) in zip(range(len(born) - 1, -1, -1), born, strict=True)]
        yield maker.chance.choices(born, heat)[0][0]


def _phases(maker: _Maker, requests: int) -> Iterator[Blocks]:
    for phase in (_recency, _loop, _zipf, _chats):
        for blocks, _ in zip(phase(maker, requests), range(requests // 4), strict=False):
            yield blocks


MADE: dict[str, Callable[[_Maker, int], Iterator[Blocks]]] = {
    "recency": _recency,
    "zipf": _zipf,
    "loop": _loop,
    "loop_zipf": _loop_zipf,
    "chats": _chats,
    "shifts": _shifts,
    "slide": _slide,
    "phases": _phases,
}
