"""Where a text ends and how tokens are chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kvcluster.engine.model import Model
from kvcluster.engine.tokenizer import Tokenizer
from kvcluster.services.completion import Completion, CompletionRequest, answers_among
from tests.request.conftest import PROMPTS
from tests.request.world import World

Worlds = Callable[..., World]
Greedy = Callable[[tuple[int, ...], int], list[int]]
PROMPT = PROMPTS[3]


def answer(world: World, request: CompletionRequest) -> Completion:
    [result] = world.run(world.open(), {1: request}).values()
    assert isinstance(result, Completion)
    return result


@pytest.mark.parametrize("cut", [(3, 9), (10, 11), (0, 5)])
def test_a_text_ends_before_its_stop_string(
    worlds: Worlds, greedy: Greedy, tokenizer: Tokenizer, cut: tuple[int, int]
) -> None:
    whole = tokenizer.decode(greedy(PROMPT, 30))
    stop = whole[slice(*cut)]
    request = CompletionRequest(PROMPT, max_tokens=30, temperature=0, ignore_eos=True, stop=("never said", stop))
    said = answer(worlds(granules=40), request)
    assert said.finish_reason == "stop"
    assert said.text == whole[: whole.index(stop)]
    assert said.completion_tokens < 30


def test_a_stop_string_that_never_comes_changes_nothing(worlds: Worlds, greedy: Greedy, tokenizer: Tokenizer) -> None:
    whole = tokenizer.decode(greedy(PROMPT, 30))
    request = CompletionRequest(PROMPT, max_tokens=30, temperature=0, ignore_eos=True, stop=(whole[-2:] + "#",))
    assert answer(worlds(granules=40), request) == Completion(whole, "length", len(PROMPT), 30)


def test_the_end_token_ends_the_text_unless_it_is_ignored(tokenizer: Tokenizer, greedy: Greedy, model: Model) -> None:
    tokens = greedy(PROMPT, 30)
    at = next(i for i in range(5, 30) if tokens[i] not in tokens[:i])
    ending = replace(model, eos_ids=frozenset({tokens[at]}))
    world = World(ending, tokenizer, granules=40)
    said = answer(world, CompletionRequest(PROMPT, max_tokens=30, temperature=0))
    assert said == Completion(tokenizer.decode(tokens[:at]), "stop", len(PROMPT), at + 1)
    ignoring = answer(world, CompletionRequest(PROMPT, max_tokens=30, temperature=0, ignore_eos=True))
    assert (ignoring.finish_reason, ignoring.completion_tokens) == ("length", 30)
    world.close()


def test_a_text_prompt_is_tokenized_as_the_tokenizer_does(worlds: Worlds, tokenizer: Tokenizer) -> None:
    world = worlds(granules=60)
    text = "Return the name of the file."
    ids = tuple(tokenizer.encode(text))
    request = CompletionRequest(text, max_tokens=12, temperature=0)
    assert answer(world, request) == answer(world, CompletionRequest(ids, max_tokens=12, temperature=0))


def test_a_seed_says_the_same_alone_in_company_and_after_preemption(worlds: Worlds) -> None:
    def asked(key: int) -> CompletionRequest:
        return CompletionRequest(PROMPTS[key], max_tokens=60, temperature=1.0, top_p=0.9, seed=key, ignore_eos=True)

    roomy, short = worlds(granules=200), worlds(granules=14)
    alone = {key: answer(roomy, asked(key)) for key in range(3)}
    service = short.open()
    assert short.run(service, {key: asked(key) for key in range(3)}) == alone
    assert service.statistics().preemptions > 0


def test_without_a_seed_two_equal_requests_draw_different_texts(worlds: Worlds) -> None:
    request = CompletionRequest(PROMPT, max_tokens=30, temperature=1.0, ignore_eos=True)
    world = worlds(granules=60)
    first, second = answer(world, request), answer(world, request)
    assert first.text != second.text


class Counting:
    """A model's tokenizer, and how many texts it has encoded."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.texts = 0

    def __call__(self, text: str) -> Any:
        self.texts += 1
        return self._inner(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_a_text_becomes_tokens_when_it_is_submitted_and_not_in_a_step(worlds: Worlds, tokenizer: Tokenizer) -> None:
    counting = Counting(tokenizer.inner)
    world = worlds(granules=400)
    world.tokenizer = Tokenizer(counting)
    service = world.open()
    service.submit(1, CompletionRequest("for number in range(", max_tokens=3))
    assert counting.texts == 1
    while not answers_among(service.said()):
        service.step()
    assert counting.texts == 1
