"""What a decision where to send a request costs, beside hashing its prompt: 1,000 devices, 100,000 known prefixes.

Prompts of 2,048 tokens, 128 blocks; 1,000 beginnings of 64 blocks, each known at three devices, and 100 prefixes that
end a block further on each, known at one. Three kinds of prompt in turn: one that goes on where a prefix is known, one
that shares only a beginning, one that nobody knows. An arm is 300 prompts; "hash" packs and hashes all of each prompt,
"decide" packs it, hashes what a decision needs and decides, noting what is about to be known. The figure is the ratio.

Beside it: seconds to take in all that 1,000 devices tell, and to forget one device.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable

from benchmarks.harness import interleaved, ratio, report, seconds, timed
from kvcluster.index.events import News, block_name
from kvcluster.index.token_chain import BLOCK_TOKENS, digests, packed
from kvcluster.services.routing import KnownPrefixes

ROOT = b"r" * 32
DEVICES = 1_000
BEGINNINGS, ENDS = 1_000, 100
BEGINNING_BLOCKS, PROMPT_BLOCKS = 64, 128
PROMPTS = 300
KINDS = ("known", "begins alike", "unknown")


def tokens(seed: int, blocks: int) -> list[int]:
    first = seed * 7919 % 150_000
    return list(range(first, first + blocks * BLOCK_TOKENS))


def names(ids: list[int]) -> list[bytes]:
    return [block_name(digest) for digest in digests(ROOT, packed(ids))]


def taken_in(known: KnownPrefixes) -> None:
    """All that is known."""
    chance = random.Random(1)
    for beginning in range(BEGINNINGS):
        ids = tokens(beginning, BEGINNING_BLOCKS)
        path = names(ids)
        for device in chance.sample(range(DEVICES), 3):
            known.changed(str(device), News(0, 0, b"".join(path)))
        for end in range(ENDS):
            one = names([*ids, *[end] * BLOCK_TOKENS])[-1]
            known.changed(str(chance.randrange(DEVICES)), News(0, 0, one))
    for device in range(DEVICES):
        known.has_free(str(device), chance.randrange(2**36))
        known.has_requests(str(device), chance.randrange(12))


def prompts(kind: str, count: int) -> list[list[int]]:
    """Of this kind, each another one."""
    chance = random.Random(kind)
    found = []
    for number in range(count):
        beginning = chance.randrange(BEGINNINGS)
        first = tokens(beginning, BEGINNING_BLOCKS)
        if kind == "known":
            first += [chance.randrange(ENDS)] * BLOCK_TOKENS
        if kind == "unknown":
            first = []
        rest = PROMPT_BLOCKS * BLOCK_TOKENS - len(first)
        found.append([*first, *range(200_000 + number, 200_000 + number + rest)])
    return found


def arms(known: KnownPrefixes, kind: str) -> dict[str, Callable[[], object]]:
    asked = prompts(kind, PROMPTS)
    among = known.set_of(map(str, range(DEVICES)))

    def hashed() -> None:
        for ids in asked:
            for _ in digests(ROOT, packed(ids)):
                pass

    def decided() -> None:
        for ids in asked:
            known.decide(digests(ROOT, packed(ids)), among=among, prompt_blocks=PROMPT_BLOCKS, block_bytes=2**20)

    return {f"{kind}: hash": hashed, f"{kind}: decide": decided}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    known = KnownPrefixes(clock=time.monotonic)
    told = timed(lambda: taken_in(known))
    every = [arms(known, kind) for kind in KINDS]
    for arm in (arm for each in every for arm in each.values()):
        arm()
    ratios, timings = {}, {}
    for kind, each in zip(KINDS, every, strict=True):
        timings |= interleaved(each, rounds=rounds)
        hashing, deciding = ([run.cpu_s for run in timings[f"{kind}: {arm}"]] for arm in ("hash", "decide"))
        ratios[f"decide / hash, {kind}"] = ratio(deciding, hashing)
    lost = timed(lambda: known.lost("0"))
    report(
        "router",
        ratios,
        seconds=seconds(timings),
        blocks=len(known),
        taken_in_s=told.cpu_s,
        lost_s=lost.cpu_s,
    )


if __name__ == "__main__":
    main()
