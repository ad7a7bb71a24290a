"""No text ends before so many tokens: not by an end token, nor by a stop string."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from kvcluster.engine.model import Model
from kvcluster.engine.tokenizer import Tokenizer
from kvcluster.services.completion import Completion, CompletionRequest, Refused, Telling
from tests.request.asking import answer, asked, prompt, texts, wide
from tests.request.conftest import PROMPTS
from tests.request.told import told
from tests.request.world import World

Worlds = Callable[..., World]
Greedy = Callable[[tuple[int, ...], int], list[int]]
PROMPT = PROMPTS[3]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_end_token_is_not_chosen_before_so_many_tokens(
    tokenizer: Tokenizer, greedy: Greedy, model: Model, temperature: float
) -> None:
    """Half of the vocabulary ends a text, so that hardly one goes on by itself."""
    world = World(replace(model, eos_ids=frozenset(range(0, 512, 2))), tokenizer, granules=80)
    requests = {
        least: CompletionRequest(PROMPT, 40, temperature, seed=1, min_tokens=least) for least in (0, 1, 7, 20, 40)
    }
    for least, request in requests.items():
        said = answer(world, world.open(), request)
        assert said.completion_tokens > min(least, 39)
        assert said.completion_tokens < least + 15
    world.close()


def test_nothing_changes_for_a_text_that_is_long_enough_by_itself(worlds: Worlds, tokenizer: Tokenizer) -> None:
    world = worlds(granules=60)
    request = CompletionRequest(PROMPT, 30, 0.0)
    assert (
        answer(world, world.open(), replace(request, min_tokens=30)).text == answer(world, world.open(), request).text
    )


def test_a_stop_string_before_so_many_tokens_is_text_as_any_other(
    worlds: Worlds, greedy: Greedy, tokenizer: Tokenizer
) -> None:
    tokens = greedy(PROMPT, 30)
    whole, early = tokenizer.decode(tokens), tokenizer.decode(tokens[:10])
    stop = early[2:6]
    again = whole.find(stop, len(early))
    world = worlds(granules=60)
    service = world.open()
    service.submit(1, asked(PROMPT, 30, stop=(stop,), min_tokens=10, tells=Telling.PARTS))
    said = told(world, [service])[1].completion
    assert said.text == (whole if again < 0 else whole[:again])
    assert said.text.startswith(early)


def test_a_stop_string_that_is_complete_with_the_last_of_them_ends_the_text(
    worlds: Worlds, greedy: Greedy, tokenizer: Tokenizer
) -> None:
    """From one token to the next: what is complete one token too early does not end it, and never will."""
    tokens = greedy(PROMPT, 30)
    whole = tokenizer.decode(tokens)
    for least in range(3, 12):
        before, upto = tokenizer.decode(tokens[: least - 1]), tokenizer.decode(tokens[:least])
        stop = upto[max(0, len(before) - 2) :]
        if whole.count(stop) != 1 or "\N{REPLACEMENT CHARACTER}" in stop:
            continue
        world = worlds(granules=60)
        ending, going_on = (
            answer(world, world.open(), asked(PROMPT, 30, stop=(stop,), min_tokens=least + more)) for more in (0, 1)
        )
        assert (ending.text, ending.completion_tokens) == (whole[: whole.index(stop)], least)
        assert (going_on.text, going_on.completion_tokens) == (whole, 30)
        return
    raise AssertionError("no text of these says anything once")


def test_beams_go_on_for_so_many_tokens(worlds: Worlds, model: Model, tokenizer: Tokenizer) -> None:
    ending = replace(model, eos_ids=frozenset(range(0, 512, 8)))
    world = World(ending, tokenizer, granules=10, blocks=200)
    short = answer(world, world.open(), wide(prompt(1, 8), 2, ignore_eos=False, length_penalty=0.0))
    long = answer(world, world.open(), wide(prompt(1, 8), 2, ignore_eos=False, length_penalty=0.0, min_tokens=10))
    assert short.completion_tokens < 20
    assert long.completion_tokens >= 2 * 11
    assert texts(long) != texts(short)
    world.close()


@pytest.mark.parametrize("least", [-1, 13])
def test_more_than_max_tokens_are_refused_by_name(worlds: Worlds, least: int) -> None:
    world = worlds(granules=10)
    results = world.run(world.open(), {1: asked(PROMPTS[0], 12, min_tokens=least), 2: asked(PROMPTS[1], 3)})
    assert results[1] == Refused(
        400, "invalid_value", f"min_tokens is {least}, and must be 0 to 12", param="min_tokens"
    )
    assert isinstance(results[2], Completion)
