"""What users of other page caches met, through the loop and in host pages: the device is too small for anything."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvcluster.engine.model import Model
from kvcluster.engine.tokenizer import Tokenizer
from kvcluster.services.completion import Completion, Refused
from kvcluster.services.request.settings import Fallback
from tests.request.asking import TOKENS, Counting, answer, asked, prompt, texts, wide
from tests.request.world import GRANULE_BYTES, World

Worlds = Callable[..., World]
Greedy = Callable[[tuple[int, ...], int], list[int]]


@pytest.fixture
def paged(worlds: Worlds) -> World:
    made = worlds(granules=1, blocks=200)
    assert made.pages is not None
    return made


@pytest.mark.parametrize("length", [39, 40, 41])
def test_a_hit_on_the_whole_prompt_leaves_its_last_token_to_compute(
    model: Model, tokenizer: Tokenizer, greedy: Greedy, length: int
) -> None:
    counting = Counting(model)
    world = World(counting, tokenizer, granules=1, blocks=50)  # type: ignore[arg-type]
    service, ids = world.open(fallback=Fallback.HOST), prompt(3, length)
    cold, warm = answer(world, service, asked(ids, 5)), answer(world, service, asked(ids, 5))
    assert cold == warm
    assert warm.text == tokenizer.decode(greedy(ids, 5))
    assert warm.cached_tokens == length - 1
    assert counting.tokens == length + 4 + 1 + 4
    world.close()


@pytest.mark.parametrize("chunk_tokens", [1, 3, 5])
def test_what_follows_a_hit_is_computed_with_its_past(
    paged: World, greedy: Greedy, tokenizer: Tokenizer, chunk_tokens: int
) -> None:
    """Chunks begin inside blocks, the first of them in the copy of one; each must see all that came with the hit."""
    service = paged.open(fallback=Fallback.HOST, prefill_chunk_tokens=chunk_tokens)
    base = prompt(4, 38)
    answer(paged, service, asked(base))
    longer = (*base, *prompt(5, 33))
    said = answer(paged, service, asked(longer))
    assert said.cached_tokens == len(base)
    assert said.text == tokenizer.decode(greedy(longer, TOKENS))


def test_another_salt_finds_nothing(paged: World) -> None:
    service, ids = paged.open(fallback=Fallback.HOST), prompt(11, 50)
    found = [answer(paged, service, asked(ids, cache_salt=salt)) for salt in ("", "one", "two", "one")]
    assert [text.cached_tokens for text in found] == [0, 0, 0, 49]
    assert len({text.text for text in found}) == 1


def test_an_empty_prompt_is_refused_and_the_next_one_is_served(paged: World) -> None:
    service = paged.open(fallback=Fallback.HOST)
    results = paged.run(service, {1: asked(()), 2: wide((), 2), 3: asked(prompt(19, 10))})
    assert [type(results[key]) for key in (1, 2, 3)] == [Refused, Refused, Completion]


@pytest.mark.parametrize("steps", range(9))
def test_a_cancel_at_any_stage_of_sharing_leaves_no_pin(paged: World, steps: int) -> None:
    """A prompt that three have in common, and a crew of beams."""
    service = paged.open(fallback=Fallback.HOST, prefill_chunk_tokens=32)
    requests = {key: asked((*prompt(22, 80), key + 3)) for key in range(3)} | {3: wide(prompt(22, 70), 3)}
    for key, request in requests.items():
        service.submit(key, request)
    for _ in range(steps):
        service.step()
    for key in requests:
        service.cancel(key)
    while service.step():
        pass
    assert paged.pages is not None
    seen = paged.pages.audit()
    assert {name.split("/")[0] for name in seen.accounts} <= {"free", "retained"}
    assert seen.running_requests == seen.open_requests == 0


@pytest.mark.parametrize("blocks", [9, 10, 11])
def test_beams_that_fit_one_by_one_and_not_together_are_refused_and_those_behind_them_are_served(
    worlds: Worlds, greedy: Greedy, tokenizer: Tokenizer, blocks: int
) -> None:
    """A prompt of five blocks, and four beams of which each needs four more: one that began again never ended."""
    world = worlds(granules=1, blocks=blocks)
    ids, service = prompt(8, 12), world.open(fallback=Fallback.HOST)
    results = world.run(service, {1: wide(prompt(7, 20), 4), 2: asked(ids)})
    refused = results[1]
    assert isinstance(refused, Refused)
    assert (refused.status_code, refused.code) == (400, "context_length_exceeded")
    assert str(blocks * GRANULE_BYTES) in refused.message
    assert texts(results[2]) == [tokenizer.decode(greedy(ids, TOKENS))]


@pytest.mark.parametrize("blocks", [14, 17])
def test_beams_that_just_fit_together_find_the_same_as_with_room_for_all(worlds: Worlds, blocks: int) -> None:
    """Beside others, who must not make them look too many."""
    roomy, tight = worlds(granules=1, blocks=200), worlds(granules=1, blocks=blocks)
    crew = wide(prompt(7, 20), 4)
    wanted = answer(roomy, roomy.open(fallback=Fallback.HOST), crew)
    requests = {1: crew, 2: asked(prompt(8, 12), 20), 3: crew, 4: asked(prompt(9, 9), 20)}
    results = tight.run(tight.open(fallback=Fallback.HOST), requests)
    assert results[1] == results[3] == wanted


def test_a_prompt_larger_than_all_pages_is_refused_while_others_run_and_wait(
    worlds: Worlds, greedy: Greedy, tokenizer: Tokenizer
) -> None:
    world = worlds(granules=1, blocks=12)
    prompts = {key: prompt(key, 9 + key) for key in (0, 2, 3)}
    requests = {key: asked(ids, 20) for key, ids in prompts.items()}
    results = world.run(world.open(fallback=Fallback.HOST), {**requests, 1: asked(prompt(1, 100)), 4: asked((7,) * 60)})
    assert isinstance(results[1], Refused)
    assert isinstance(results[4], Refused)
    assert {key: texts(results[key]) for key in prompts} == {
        key: [tokenizer.decode(greedy(ids, 20))] for key, ids in prompts.items()
    }
