"""Beam search through the loop: the beams of transformers, whatever else runs and however few pages there are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from kvcluster.engine.model import Model
from kvcluster.engine.tokenizer import Tokenizer
from kvcluster.services.completion import Completion, Refused
from tests.request.asking import BEAM_TOKENS, answer, asked, prompt, texts, wide
from tests.request.world import World

Worlds = Callable[..., World]
Greedy = Callable[[tuple[int, ...], int], list[int]]
Beams = Callable[..., list[str]]


@pytest.fixture(scope="module")
def beams_of(folder: Path, tokenizer: Tokenizer) -> Beams:
    """What transformers' generate() finds, the best first; it knows no end."""
    reference: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    reference.generation_config.eos_token_id = None

    @cache
    def found(ids: tuple[int, ...], width: int, length_penalty: float = 1.0, tokens: int = BEAM_TOKENS) -> list[str]:
        batch = torch.tensor([ids])
        said = reference.generate(
            batch,
            attention_mask=torch.ones_like(batch),
            do_sample=False,
            num_beams=width,
            num_return_sequences=width,
            length_penalty=length_penalty,
            max_new_tokens=tokens,
        )
        return [tokenizer.decode(one[len(ids) :].tolist()) for one in said]

    return found


@pytest.mark.parametrize("width", [1, 2, 3, 5])
@pytest.mark.parametrize("length", [3, 15, 16, 17])
def test_beams_are_those_of_transformers(worlds: Worlds, beams_of: Beams, width: int, length: int) -> None:
    world = worlds(granules=10, blocks=200)
    ids = prompt(1, length)
    said = answer(world, world.open(), wide(ids, width))
    assert texts(said) == beams_of(ids, width)
    assert said.completion_tokens == width * BEAM_TOKENS


@pytest.mark.parametrize("early_stopping", [False, True])
@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0])
def test_beams_that_end_are_those_of_transformers(
    model: Model, folder: Path, tokenizer: Tokenizer, length_penalty: float, early_stopping: bool
) -> None:
    reference: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids, ends = prompt(1, 15), frozenset(range(100, 140))
    batch = torch.tensor([ids])
    said = reference.generate(
        batch,
        attention_mask=torch.ones_like(batch),
        do_sample=False,
        num_beams=3,
        num_return_sequences=3,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
        max_new_tokens=BEAM_TOKENS,
        eos_token_id=sorted(ends),
        pad_token_id=1,
    )
    wanted = []
    for one in said:
        new = one[len(ids) :].tolist()
        end = next((place for place, token in enumerate(new) if token in ends), None)
        wanted.append((tokenizer.decode(new[:end]), "length" if end is None else "stop"))
    world = World(replace(model, eos_ids=ends), tokenizer, granules=10, blocks=100)
    request = wide(ids, 3, ignore_eos=False, length_penalty=length_penalty, early_stopping=early_stopping)
    found = answer(world, world.open(), request)
    assert [(choice.text, choice.finish_reason) for choice in found.choices] == wanted
    assert any(reason == "stop" for _, reason in wanted)
    world.close()


def test_a_hit_changes_no_beam(worlds: Worlds, beams_of: Beams) -> None:
    world = worlds(granules=10, blocks=200)
    service = world.open()
    ids = prompt(2, 41)
    cold, warm = answer(world, service, wide(ids, 3)), answer(world, service, wide(ids, 3))
    assert texts(cold) == texts(warm) == beams_of(ids, 3)
    assert (cold.cached_tokens, warm.cached_tokens) == (0, 40)


def test_beams_beside_others_change_nobody_s_text(
    worlds: Worlds, beams_of: Beams, greedy: Greedy, tokenizer: Tokenizer
) -> None:
    world = worlds(granules=100, blocks=300)
    first, second, plain = prompt(3, 20), prompt(4, 30), prompt(5, 25)
    results = world.run(world.open(), {1: wide(first, 4), 2: asked(plain, 40), 3: wide(second, 2)})
    assert texts(results[1]) == beams_of(first, 4)
    assert texts(results[2]) == [tokenizer.decode(greedy(plain, 40))]
    assert texts(results[3]) == beams_of(second, 2)


@pytest.mark.parametrize("blocks", [30, 36, 44])
def test_crews_that_are_short_of_pages_begin_again_and_find_the_same(
    worlds: Worlds, beams_of: Beams, blocks: int
) -> None:
    world = worlds(granules=10, blocks=blocks)
    service = world.open()
    prompts = {key: prompt(10 + key, 20 + key) for key in range(3)}
    results = world.run(service, {key: wide(ids, 3) for key, ids in prompts.items()})
    for key, ids in prompts.items():
        assert texts(results[key]) == beams_of(ids, 3)
    if blocks == 30:
        assert service.statistics().preemptions + service.statistics().refusals > 0


@pytest.mark.parametrize("steps", range(0, 12, 2))
def test_a_cancelled_crew_gives_everything_back(worlds: Worlds, steps: int) -> None:
    world = worlds(granules=10, blocks=100)
    service = world.open()
    service.submit(1, wide(prompt(6, 20), 4))
    for _ in range(steps):
        service.step()
    service.cancel(1)
    assert world.finish([service]) == [{}]
    assert world.pages is not None
    assert world.pages.audit().open_requests == 0


def test_without_host_pages_a_beam_search_is_refused_and_the_next_request_served(worlds: Worlds) -> None:
    world = worlds(granules=20)
    results = world.run(world.open(), {1: wide(prompt(7, 9), 2), 2: asked(prompt(8, 9))})
    refused = results[1]
    assert isinstance(refused, Refused)
    assert "host_memory" in refused.message
    assert isinstance(results[2], Completion)


def test_more_beams_than_may_run_together_are_refused(worlds: Worlds) -> None:
    world = worlds(granules=20, blocks=50)
    refused = world.run(world.open(max_num_seqs=3), {1: wide(prompt(7, 9), 4)})[1]
    assert isinstance(refused, Refused)
    assert refused.message == "n is 4, and a beam search here is at most 3 wide"


def test_a_text_of_a_beam_ends_before_its_stop_string(worlds: Worlds, beams_of: Beams) -> None:
    world = worlds(granules=10, blocks=200)
    ids = prompt(9, 12)
    whole = beams_of(ids, 2)
    stop = whole[0][4:8]
    said = answer(world, world.open(), wide(ids, 2, stop=(stop,)))
    assert said.text == whole[0][: whole[0].index(stop)]
    assert said.finish_reason == "stop"
