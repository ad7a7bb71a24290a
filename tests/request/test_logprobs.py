"""How likely each token was: the model's own distribution, whatever was drawn from it, and however it came about."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from kvcluster.engine.model import Model
from kvcluster.engine.tokenizer import Tokenizer
from kvcluster.services.completion import Completion, CompletionRequest, Likelihood, Refused, Telling
from kvcluster.services.request.settings import Fallback
from tests.request.asking import answer, asked, prompt, wide
from tests.request.conftest import PROMPTS
from tests.request.mortal import Mortal
from tests.request.told import told
from tests.request.world import World

Worlds = Callable[..., World]
Greedy = Callable[[tuple[int, ...], int], list[int]]
LONG = 60


@pytest.fixture(scope="module")
def reference(folder: Path) -> Callable[[tuple[int, ...], list[int]], torch.Tensor]:
    """The log-probabilities of transformers' own model at each place of a text."""
    module: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def at_each_place(ids: tuple[int, ...], said: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            logits: torch.Tensor = module(torch.tensor([[*ids, *said]])).logits[0].float()
        return logits[len(ids) - 1 : -1].log_softmax(-1)

    return at_each_place


@pytest.mark.parametrize("draw", [{}, {"temperature": 0.7, "top_p": 0.5, "seed": 3}], ids=["greedy", "drawn"])
def test_they_are_those_of_the_model_before_temperature_and_top_p(
    worlds: Worlds, tokenizer: Tokenizer, reference: Callable[..., torch.Tensor], draw: dict[str, Any]
) -> None:
    said = answer(worlds(granules=40), worlds(granules=40).open(), asked(PROMPTS[2], logprobs=3, **draw))
    ids = chosen_ids(worlds, asked(PROMPTS[2], **draw))
    expected = reference(PROMPTS[2], ids)
    assert [each.token for each in said.logprobs] == [tokenizer.decode_alone(token) for token in ids]
    for place, each in enumerate(said.logprobs):
        assert each.logprob == pytest.approx(float(expected[place, ids[place]]), abs=1e-3)
        best = expected[place].topk(3)
        assert [logprob for _, logprob in each.others] == pytest.approx(best.values.tolist(), abs=1e-3)
        assert [token for token, _ in each.others] == [tokenizer.decode_alone(i) for i in best.indices.tolist()]


def chosen_ids(worlds: Worlds, request: CompletionRequest) -> list[int]:
    """The token ids of a text, by a tokenizer that says them."""

    class Numbers:
        def __init__(self, tokenizer: Tokenizer) -> None:
            self._tokenizer = tokenizer

        def __getattr__(self, name: str) -> object:
            return getattr(self._tokenizer, name)

        def decode_alone(self, token_id: int) -> str:
            return str(token_id)

    world = worlds(granules=40)
    world.tokenizer = Numbers(world.tokenizer)  # type: ignore[assignment]
    said = answer(world, world.open(), replace(request, logprobs=0))
    return [int(each.token) for each in said.logprobs]


def test_none_are_said_that_are_not_asked_for(worlds: Worlds) -> None:
    world = worlds(granules=60)
    service = world.open()
    results = world.run(service, {1: asked(PROMPTS[1]), 2: asked(PROMPTS[2], logprobs=0), 3: asked(PROMPTS[3], n=2)})
    assert logprobs_of(results[1]) == [()]
    assert logprobs_of(results[3]) == [(), ()]
    [those] = logprobs_of(results[2])
    assert len(those) == 12
    assert not any(each.others for each in those)


def logprobs_of(answered: object) -> list[tuple[Likelihood, ...]]:
    assert isinstance(answered, Completion)
    return [choice.logprobs for choice in answered.choices]


def test_each_of_several_texts_has_its_own_and_asking_changes_no_text(worlds: Worlds) -> None:
    draw = {"n": 3, "temperature": 1.0, "seed": 5}
    world = worlds(granules=100)
    said = answer(world, world.open(), asked(PROMPTS[4], logprobs=2, **draw))
    silent = answer(world, world.open(), asked(PROMPTS[4], **draw))
    assert [choice.text for choice in said.choices] == [choice.text for choice in silent.choices]
    assert [len(choice.logprobs) for choice in said.choices] == [12, 12, 12]
    assert len({choice.logprobs for choice in said.choices}) == 3


@pytest.mark.parametrize("settings", [{}, {"fallback": Fallback.HOST}], ids=["preempted", "moved"])
def test_who_lost_its_memory_keeps_them_and_streams_them_once(worlds: Worlds, settings: dict[str, Any]) -> None:
    requests = {key: asked(PROMPTS[key], LONG, logprobs=2, tells=Telling.PARTS) for key in range(3)}
    roomy, short = worlds(granules=200), worlds(granules=14, blocks=200 if settings else 0)
    service = short.open(**settings)
    for key, request in requests.items():
        service.submit(key, request)
    heard = told(short, [service])
    done = service.statistics()
    assert done.preemptions > 0
    alone = roomy.run(roomy.open(), requests)
    for key in requests:
        for mine, theirs in zip(heard[key].completion.logprobs, logprobs_of(alone[key])[0], strict=True):
            assert mine.token == theirs.token
            assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-3)


def test_a_successor_begins_again_where_they_are_wanted_so_that_none_is_missing(worlds: Worlds) -> None:
    world = worlds(granules=512, grace_s=60.0)
    dead = Mortal(world)
    dead.submit({1: asked(PROMPTS[1], logprobs=1)})
    dead.step(6)
    dead.die()
    successor = Mortal(world)
    successor.submit({1: asked(PROMPTS[1], logprobs=1, died_with=(dead.session,))})
    [said] = successor.finish().values()
    assert len(said.logprobs) == said.completion_tokens == 12
    successor.close()


def test_a_masked_end_token_keeps_its_own_likelihood(tokenizer: Tokenizer, greedy: Greedy, model: Model) -> None:
    """What may not be chosen is as likely as it was."""
    first = greedy(PROMPTS[3], 1)[0]
    world = World(replace(model, eos_ids=frozenset({first})), tokenizer, granules=40)
    said = answer(world, world.open(), CompletionRequest(PROMPTS[3], 4, temperature=0, min_tokens=4, logprobs=2))
    likeliest, second = said.logprobs[0].others
    assert likeliest[0] == tokenizer.decode_alone(first)
    assert (said.logprobs[0].token, said.logprobs[0].logprob) == second
    world.close()


def test_all_are_natural_logarithms_of_probabilities(worlds: Worlds) -> None:
    said = answer(worlds(granules=40), worlds(granules=40).open(), asked(PROMPTS[5], logprobs=20, temperature=2.0))
    for each in said.logprobs:
        assert len(each.others) == 20
        assert [logprob for _, logprob in each.others] == sorted((p for _, p in each.others), reverse=True)
        assert each.logprob <= 0
        assert sum(math.exp(logprob) for _, logprob in each.others) <= 1 + 1e-6


@pytest.mark.parametrize("wrong", [-1, 21])
def test_more_than_twenty_or_fewer_than_none_are_refused_by_name(worlds: Worlds, wrong: int) -> None:
    world = worlds(granules=10)
    refused = world.run(world.open(), {1: asked(PROMPTS[0], logprobs=wrong)})[1]
    assert isinstance(refused, Refused)
    assert (refused.status_code, refused.message) == (400, f"logprobs is {wrong}, and must be 0 to 20")


def test_beams_have_none_to_say(worlds: Worlds) -> None:
    world = worlds(granules=10, blocks=60)
    refused = world.run(world.open(), {1: wide(prompt(1, 8), 2, logprobs=1)})[1]
    assert isinstance(refused, Refused)
    assert "logprobs" in refused.message
