"""What the books of host pages cost a block: each part beside a bare Python loop over the same blocks, in one run.

    hash                    `index.token_chain.digests` over a prompt's ids
                            floor: sha256 of the last digest and the next 64 bytes, block after block
    alloc + free            `paged.counts`: allocate the blocks of a sequence at once, drop them at once
                            floor: pop each from a list of ints, append each to it
    lookup + touch + free   a known prompt's blocks are found by their ids, referenced and used; then dropped and idle
                            again: `index.block_index`, `paged.counts`, `index.retention`
                            floor: get each from a dict by its digest, which is at hand, compare its ids, count up;
                            then count down
    beginnings              the same of a prompt's beginning, each time of another length: what is used apart from the
                            rest is told apart from then on, so this is where `index.retention` has most to do
    lookup, lookup + count  lookup + touch + free without what comes after; beside that floor too

That floor keeps no order of what nobody uses, without which a cache does not know what goes next. So lookup + touch +
free stands beside another one too, "an LRU": the same loop, whose blocks leave an OrderedDict with their first
reference and come back to its end with their last, as a list of free blocks in the order of their use has it.

in pools of 1 k to 1 M blocks of 16 tokens, all of them known, in sequences of 1,000; every sequence in its turn, so
that a large pool is as far from the processor's caches as it is in use. Each round runs both arms of every part and
pool, and gives a ratio of each; flat is a part's time a block beside its own in the smallest pool, within a round. The
floors are not flat themselves: their dict's entries are in the processor's caches or not. So they have that ratio too.
Compared are CPU seconds of the thread. Nothing here touches the memory of a page.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from benchmarks.harness import Ratio, ratio, report
from kvcluster.index.block_index import BlockIndex
from kvcluster.index.retention import Retention
from kvcluster.index.token_chain import BLOCK_TOKENS, ID_BYTES, blocks_of, digests
from kvcluster.paged.counts import BlockCounts

SEQUENCE_BLOCKS = 1_000
BLOCK_BYTES = BLOCK_TOKENS * ID_BYTES
ROOT = bytes(32)
TARGETS = {"part / floor": 2.0, "flat": 1.5}
TOUCH = "lookup + touch + free"

Arm = Callable[[int], object]  # of the n-th sequence


@dataclass(slots=True, eq=False)
class Prompt:
    """One sequence's ids, and what is known of its blocks."""

    token_ids: bytes
    links: list[tuple[bytes, bytes]] = field(default_factory=list)
    contents: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.contents = list(digests(ROOT, self.token_ids))
        self.links = list(zip(self.contents, blocks_of(self.token_ids), strict=True))


class Ours:
    """A pool whose blocks are all listed and idle, and one that is all free."""

    def __init__(self, prompts: list[Prompt]) -> None:
        self._prompts = prompts
        self._index = BlockIndex(BLOCK_TOKENS)
        self._counts = BlockCounts(len(prompts) * SEQUENCE_BLOCKS)
        self._retention: Retention[bytes] = Retention()
        self._parted: Retention[bytes] = Retention()  # the same for beginnings, so that they part nothing for others
        self._free = BlockCounts(len(prompts) * SEQUENCE_BLOCKS)
        self._chance = random.Random(1)
        for prompt in prompts:
            blocks = self._counts.allocate(SEQUENCE_BLOCKS)
            for block in self._index.insert(ROOT, prompt.token_ids, blocks).new:
                self._counts.reside(block)
            for retention in (self._retention, self._parted):
                retention.use(*prompt.contents)
            self._leave(blocks, prompt.contents, self._retention)

    def hash(self, turn: int) -> None:
        for _ in digests(ROOT, self._prompts[turn].token_ids):
            pass

    def allocate_and_free(self, turn: int) -> None:
        self._free.drop(self._free.allocate(SEQUENCE_BLOCKS))

    def look_up(self, turn: int) -> Sequence[int]:
        return self._index.look_up(ROOT, self._prompts[turn].token_ids).blocks

    def touch_beginning(self, turn: int) -> None:
        length = self._chance.randint(1, SEQUENCE_BLOCKS)
        prompt = self._prompts[turn]
        blocks = self._index.look_up(ROOT, prompt.token_ids[: length * BLOCK_BYTES]).blocks
        self._counts.reference(blocks)
        self._parted.use(*prompt.contents[:length])
        self._leave(blocks, prompt.contents[:length], self._parted)

    def look_up_and_count(self, turn: int) -> None:
        blocks = self.look_up(turn)
        self._counts.reference(blocks)
        self._counts.drop(blocks)

    def touch(self, turn: int) -> None:
        prompt, blocks = self._prompts[turn], self.look_up(turn)
        self._counts.reference(blocks)
        self._retention.use(*prompt.contents)
        self._leave(blocks, prompt.contents, self._retention)

    def _leave(self, blocks: Sequence[int], contents: list[bytes], retention: Retention[bytes]) -> None:
        self._counts.drop(blocks)
        if len(self._counts.idle_among(blocks)) == len(blocks):
            retention.idle(*contents)


class Bare:
    """The loops."""

    def __init__(self, prompts: list[Prompt]) -> None:
        self._prompts = prompts
        links = [link for prompt in prompts for link in prompt.links]
        self._known = {digest: (bytes(bytearray(ids)), number) for number, (digest, ids) in enumerate(links)}
        self._references = [0] * len(links)
        self._free = list(range(len(links)))
        self._idle = OrderedDict.fromkeys(range(len(links)))
        self._chance = random.Random(1)

    def hash(self, turn: int) -> None:
        digest, token_ids = ROOT, self._prompts[turn].token_ids
        for end in range(BLOCK_BYTES, len(token_ids) + 1, BLOCK_BYTES):
            digest = sha256(digest + token_ids[end - BLOCK_BYTES : end]).digest()

    def allocate_and_free(self, turn: int) -> None:
        free, taken = self._free, []
        for _ in range(SEQUENCE_BLOCKS):
            taken.append(free.pop())  # noqa: PERF401
        for number in taken:
            free.append(number)

    def touch(self, turn: int) -> None:
        self._touch(self._prompts[turn].links)

    def touch_beginning(self, turn: int) -> None:
        self._touch(self._prompts[turn].links[: self._chance.randint(1, SEQUENCE_BLOCKS)])

    def _touch(self, links: list[tuple[bytes, bytes]]) -> None:
        known, references, found = self._known, self._references, []
        for digest, ids in links:
            entry = known.get(digest)
            if entry is None or entry[0] != ids:
                break
            references[entry[1]] += 1
            found.append(entry[1])
        for number in found:
            references[number] -= 1

    def touch_in_order(self, turn: int) -> None:
        known, references, idle, found = self._known, self._references, self._idle, []
        for digest, ids in self._prompts[turn].links:
            entry = known.get(digest)
            if entry is None or entry[0] != ids:
                break
            if not references[entry[1]]:
                del idle[entry[1]]
            references[entry[1]] += 1
            found.append(entry[1])
        for number in found:
            references[number] -= 1
            if not references[number]:
                idle[number] = None


class Pool:
    """Both arms of each part, over the same prompts."""

    def __init__(self, blocks: int, *, seed: int) -> None:
        chance = random.Random(seed)
        self._prompts = [
            Prompt(chance.randbytes(SEQUENCE_BLOCKS * BLOCK_BYTES)) for _ in range(blocks // SEQUENCE_BLOCKS)
        ]
        ours, bare = Ours(self._prompts), Bare(self._prompts)
        self.parts: dict[str, tuple[Arm, Arm]] = {
            "hash": (ours.hash, bare.hash),
            "alloc + free": (ours.allocate_and_free, bare.allocate_and_free),
            "lookup": (ours.look_up, bare.touch),
            "lookup + count": (ours.look_up_and_count, bare.touch),
            TOUCH: (ours.touch, bare.touch),
            f"{TOUCH}, beside an LRU": (ours.touch, bare.touch_in_order),
            "beginnings": (ours.touch_beginning, bare.touch_beginning),
        }

    def microseconds(self, arm: Arm, *, least_blocks: int) -> float:
        """A block; over every sequence once, or more often where they are few."""
        turns = max(len(self._prompts), least_blocks // SEQUENCE_BLOCKS)
        start = time.thread_time()
        for turn in range(turns):
            arm(turn % len(self._prompts))
        return (time.thread_time() - start) * 1e6 / (turns * SEQUENCE_BLOCKS)


@dataclass(slots=True, eq=False)
class Times:
    """Microseconds a block of each round, ours and the floor's."""

    ours: list[float] = field(default_factory=list)
    floor: list[float] = field(default_factory=list)


def measured(pools: dict[int, Pool], *, rounds: int, least_blocks: int) -> dict[tuple[str, int], Times]:
    times = {(part, size): Times() for size, pool in pools.items() for part in pool.parts}
    for number in range(-1, rounds):  # the first is the warm-up
        for (part, size), both in times.items():
            for which in (0, 1) if number % 2 else (1, 0):
                figure = pools[size].microseconds(pools[size].parts[part][which], least_blocks=least_blocks)
                if number >= 0:
                    (both.ours, both.floor)[which].append(figure)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--blocks", type=int, nargs="+", default=[1_000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--least-blocks", type=int, default=100_000, help="a turn of an arm, where the pool has fewer")
    asked = parser.parse_args()
    pools = {size: Pool(size, seed=size) for size in sorted(asked.blocks)}
    gc.collect()
    gc.freeze()
    times = measured(pools, rounds=asked.rounds, least_blocks=asked.least_blocks)
    smallest = min(pools)
    figures: dict[str, Ratio] = {}
    for (part, size), both in times.items():
        figures[f"{part}, {size:,} blocks / floor"] = ratio(both.ours, both.floor)
        if size > smallest:
            least = times[part, smallest]
            figures[f"{part}, {size:,} blocks / {smallest:,} blocks"] = ratio(both.ours, least.ours)
            figures[f"floor of {part}, {size:,} blocks / {smallest:,} blocks"] = ratio(both.floor, least.floor)
    microseconds = {
        f"{part}, {size:,} blocks": {"ours": statistics.median(both.ours), "floor": statistics.median(both.floor)}
        for (part, size), both in times.items()
    }
    for what, each in microseconds.items():
        print(f"{what}: {each['ours']:.3f} us a block, floor {each['floor']:.3f}")
    report("blocks", figures, targets=TARGETS, microseconds_a_block=microseconds, rounds=asked.rounds)


if __name__ == "__main__":
    main()
