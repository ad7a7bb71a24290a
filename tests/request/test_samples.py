"""Several texts of one request: the same as of as many requests, and their prompt computed once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvcluster.engine.model import Model
from kvcluster.engine.tokenizer import Tokenizer
from kvcluster.services.completion import Refused
from tests.request.asking import GRANULE_TOKENS, TOKENS, Counting, answer, asked, prompt
from tests.request.world import World

Worlds = Callable[..., World]


def test_samples_are_those_of_single_requests_and_share_their_prompt(model: Model, tokenizer: Tokenizer) -> None:
    counting = Counting(model)
    world = World(counting, tokenizer, granules=400)  # type: ignore[arg-type]
    ids = prompt(23, 12 * GRANULE_TOKENS)
    draw = {"temperature": 1.0, "top_p": 0.95, "seed": 7}
    together = answer(world, world.open(), asked(ids, n=4, **draw))
    assert counting.tokens == len(ids) + 3 + 4 * (TOKENS - 1)
    alone = [answer(world, world.open(prefix_cache=False), asked(ids, sample=i, **draw)) for i in range(4)]
    assert [choice.text for choice in together.choices] == [one.text for one in alone]
    assert len({choice.text for choice in together.choices}) == 4
    assert (together.prompt_tokens, together.completion_tokens) == (len(ids), 4 * TOKENS)
    assert together.cached_tokens == 0
    world.close()


def test_a_request_of_several_texts_is_cancelled_whole(worlds: Worlds) -> None:
    world = worlds(granules=100)
    service = world.open()
    service.submit(1, asked(prompt(24, 20), 30, n=5, temperature=1.0))
    for _ in range(5):
        service.step()
    service.cancel(1)
    assert world.finish([service]) == [{}]


@pytest.mark.parametrize("wrong", [{"n": 0}, {"n": 129}, {"sample": -1}])
def test_counts_that_make_no_sense_are_refused_by_name(worlds: Worlds, wrong: dict[str, int]) -> None:
    world = worlds(granules=10)
    refused = world.run(world.open(), {1: asked(prompt(1, 5), **wrong)})[1]
    assert isinstance(refused, Refused)
    assert next(iter(wrong)) in refused.message
