"""In host pages, too, the text on a hit is that on a miss and that of generate(), in float32, through the whole loop.

The device is too small for anything unless a test says otherwise, so that all of it happens in pages of four tokens.
Three families: full attention, with normed queries and keys, and sliding windows in some layers, of which pages keep
every token and read the last ones. What was found is compared to the token.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from kvcluster import Layout
from kvcluster.services.completion import Completion
from kvcluster.services.request import RequestService
from kvcluster.services.request.settings import Fallback
from kvcluster.testing.models import WINDOW_TOKENS
from tests.exact.subject import Prompt, Subject, greedy
from tests.request.world import GRANULE_BYTES, Results, World

Subjects = Callable[..., Subject]
Worlds = Callable[..., World]

SIZE = 4
SAID, MOST_SAID = 8, 40
LENGTHS = (*range(1, 2 * SIZE + 2), *range(31, 31 + SIZE))
"""Every remainder of a block, from less than one block to far beyond the window."""

families = pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])


def drawn(seed: int, count: int) -> Prompt:
    return tuple(random.Random(seed).choices(range(5, 512), k=count))


FIRST = tuple((*drawn(n, n), 3, *drawn(100 + n, 8)) for n in LENGTHS)
SECOND = tuple((*drawn(n, n), 4, *drawn(200 + n, 5)) for n in LENGTHS)
"""Pairs that agree in as many tokens as LENGTHS says, and no two pairs in any."""


def in_pages(worlds: Worlds, one: Subject, blocks: int = 2000) -> World:
    return worlds(one, granules=1, blocks=blocks, block_size=SIZE)


def said(world: World, service: RequestService, prompts: Sequence[Prompt]) -> Results:
    """What all of them are answered, at once."""
    return world.run(service, greedy(prompts, SAID))


def texts(results: Results) -> list[str]:
    return [answer.text for answer in completions(results)]


def hits(results: Results) -> list[int]:
    """How much of each prompt was found."""
    return [answer.cached_tokens for answer in completions(results)]


def completions(results: Results) -> list[Completion]:
    assert all(isinstance(answer, Completion) for answer in results.values())
    return [answer for _, answer in sorted(results.items()) if isinstance(answer, Completion)]


def test_the_lengths_have_every_remainder_on_both_sides_of_the_window() -> None:
    assert {n % SIZE for n in LENGTHS if n < WINDOW_TOKENS} == set(range(SIZE))
    assert {n % SIZE for n in LENGTHS if n > 2 * WINDOW_TOKENS} == set(range(SIZE))
    assert len({first[0] for first in FIRST}) == len(LENGTHS)


@families
def test_a_hit_of_every_length_says_what_a_miss_and_generate_say(
    family: str, subject: Subjects, worlds: Worlds
) -> None:
    """A, B, A; then B where nothing is looked for."""
    one = subject(family)
    world = in_pages(worlds, one)
    service = world.open(fallback=Fallback.HOST)
    a, b, again = (said(world, service, prompts) for prompts in (FIRST, SECOND, FIRST))
    miss = said(world, world.open(fallback=Fallback.HOST, prefix_cache=False), SECOND)
    assert a == again == one.wanted(FIRST, SAID)
    assert b == miss == one.wanted(SECOND, SAID)
    assert hits(a) == hits(miss) == [0] * len(LENGTHS)
    assert hits(b) == [*LENGTHS]
    assert hits(again) == [len(ids) - 1 for ids in FIRST]


@families
def test_each_turn_of_a_chat_finds_the_whole_blocks_of_all_turns_before_it(
    family: str, subject: Subjects, worlds: Worlds
) -> None:
    one = subject(family)
    world = in_pages(worlds, one)
    service = world.open(fallback=Fallback.HOST, prefill_chunk_tokens=7)
    chats = [drawn(300 + n, 12 + n) for n in range(SIZE)]
    known = [0] * SIZE
    for turn in range(3):
        results = said(world, service, chats)
        assert results == one.wanted(chats, SAID)
        assert hits(results) == known
        known = [(len(chat) + SAID - 1) // SIZE * SIZE for chat in chats]
        chats = [(*chat, *one.continued(chat, SAID), *drawn(400 + turn, 5 + turn)) for chat in chats]


@families
def test_a_hit_that_is_preempted_and_looks_again_changes_no_text(
    family: str, subject: Subjects, worlds: Worlds
) -> None:
    """There is room for two of six, which begin alike by twos; each gives way and finds what is left of it."""
    one = subject(family)
    prompts = [(*drawn(n // 2, 21 + n % 2), *drawn(500 + n, 9)) for n in range(6)]
    world = in_pages(worlds, one, blocks=34)
    service = world.open(fallback=Fallback.HOST, margin_steps=1)
    for _ in range(2):
        assert world.run(service, greedy(prompts, 5 * SAID)) == one.wanted(prompts, 5 * SAID)
    assert service.statistics().preemptions > 0
    assert service.statistics().hit_tokens > 0


@families
def test_what_joined_on_the_device_and_moved_to_pages_says_what_generate_says_and_is_found_there(
    family: str, subject: Subjects, worlds: Worlds
) -> None:
    """All but what came out of rings: these have the last tokens alone, and nobody else can begin with those."""
    one = subject(family)
    prompts = [(*drawn(1, 80), 5 + n, *drawn(600 + n, 3)) for n in range(5)]
    granules = 5 * one.shape(Layout.TOKEN_MAJOR).committed_bytes(len(prompts[0]) + MOST_SAID) // (3 * GRANULE_BYTES)
    world = worlds(one, granules=granules, blocks=800, block_size=SIZE)
    service = world.open(fallback=Fallback.HOST, margin_steps=1)
    moving = world.run(service, greedy(prompts, MOST_SAID))
    assert moving == one.wanted(prompts, MOST_SAID)
    assert hits(moving)[0] == 0 < hits(moving)[1]
    figures = service.statistics()
    longer = [(*ids, *one.continued(ids, MOST_SAID), *drawn(700, 400)) for ids in prompts]  # more than the device has
    found = said(world, service, longer)
    assert found == one.wanted(longer, SAID)
    whole = figures.fallbacks + (0 if family == "gemma3" else figures.moves)
    assert sum(tokens > len(prompts[0]) for tokens in hits(found)) == whole
    assert figures.moves > 0


@families
def test_one_wrong_row_of_a_block_that_is_found_changes_the_text(
    family: str, subject: Subjects, worlds: Worlds
) -> None:
    """Else equal texts would say nothing: of the first block's second token, K in every layer."""
    one = subject(family)
    world = in_pages(worlds, one)
    service = world.open(fallback=Fallback.HOST)
    said(world, service, FIRST[-1:])
    assert world.pages is not None
    pool = world.pages.pool.tensor
    [number, *_] = [n for n in range(len(pool)) if pool[n].any()]
    pool[number, 0, :, :, 1] *= -8
    found = said(world, service, SECOND[-1:])
    wanted = one.wanted(SECOND[-1:], SAID)
    assert texts(found) != texts(wanted)
    assert hits(found) == [LENGTHS[-1]]
    assert said(world, world.open(fallback=Fallback.HOST, prefix_cache=False), SECOND[-1:]) == wanted
