"""Sliding windows: what was computed is found at the boundaries that were published, which the loop does by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from kvcluster.engine.model import Model, open_model
from kvcluster.engine.tokenizer import Tokenizer, open_tokenizer
from kvcluster.errors import OutOfBudget
from kvcluster.geometry.layout import Layout
from kvcluster.services.asks import Grow
from kvcluster.services.completion import Completion
from kvcluster.services.request import RequestService
from kvcluster.services.request.settings import Fallback
from kvcluster.services.sequence import SequenceSpec
from kvcluster.testing.models import make_model
from tests.request.asking import Counting, answer, asked, prompt
from tests.request.world import World

Greedy = Callable[[tuple[int, ...], int], list[int]]
TOKENS = 20


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("rings") / "gemma3", "gemma3")


@pytest.fixture(scope="module")
def ringed(gemma: Path) -> tuple[Model, Tokenizer]:
    return open_model(gemma, dtype=torch.float32, threads=1), open_tokenizer(gemma)


@pytest.fixture(scope="module")
def said_by_generate(gemma: Path, ringed: tuple[Model, Tokenizer]) -> Greedy:
    reference: Any = AutoModelForCausalLM.from_pretrained(gemma, dtype=torch.float32).eval()
    reference.generation_config.eos_token_id = None

    @cache
    def text(ids: tuple[int, ...], count: int) -> str:
        batch = torch.tensor([ids])
        said = reference.generate(batch, attention_mask=torch.ones_like(batch), do_sample=False, max_new_tokens=count)
        return ringed[1].decode(said[0, len(ids) :].tolist())

    return text  # type: ignore[return-value]


@pytest.fixture
def world(ringed: tuple[Model, Tokenizer]) -> Iterator[World]:
    made = World(Counting(ringed[0]), ringed[1], granules=600)  # type: ignore[arg-type]
    yield made
    made.close()


def served(world: World, service: RequestService, ids: tuple[int, ...], max_tokens: int = TOKENS) -> Completion:
    return answer(world, service, asked(ids, max_tokens))


@pytest.mark.parametrize("length", [100, 128, 131])
@pytest.mark.parametrize("max_tokens", [1, TOKENS])
def test_the_end_of_a_prompt_is_found_by_whoever_has_all_of_it(
    world: World, said_by_generate: Greedy, length: int, max_tokens: int
) -> None:
    service = world.open(prefill_chunk_tokens=32)
    base = prompt(1, length)
    cold = served(world, service, base, max_tokens)
    again = served(world, service, base, max_tokens)
    longer = (*base, *prompt(2, 9))
    chat = served(world, service, longer, max_tokens)
    for ids, said in ((base, cold), (base, again), (longer, chat)):
        assert said.text == said_by_generate(ids, max_tokens)
    assert cold.cached_tokens == 0
    assert 64 <= again.cached_tokens == chat.cached_tokens < length


def test_a_boundary_that_a_second_prompt_shares_is_published_while_it_is_computed(
    world: World, said_by_generate: Greedy
) -> None:
    """Nobody knew that the first prompt's beginning would come again; the third request finds it."""
    service = world.open(prefill_chunk_tokens=32)
    common = prompt(3, 96)
    prompts = [(*common, *prompt(4 + turn, 40 + turn)) for turn in range(3)]
    texts = [served(world, service, ids) for ids in prompts]
    assert [text.text for text in texts] == [said_by_generate(ids, TOKENS) for ids in prompts]
    first, second, third = (text.cached_tokens for text in texts)
    assert (first, second) == (0, 0)
    assert 64 <= third <= 96


def test_requests_at_once_compute_what_they_share_once(world: World, said_by_generate: Greedy) -> None:
    service = world.open(prefill_chunk_tokens=32)
    common = prompt(8, 128)
    prompts = {key: (*common, *prompt(20 + key, 5 + key)) for key in range(4)}
    results = world.run(service, {key: asked(ids, TOKENS) for key, ids in prompts.items()})
    for key, ids in prompts.items():
        said = results[key]
        assert isinstance(said, Completion)
        assert said.text == said_by_generate(ids, TOKENS)
        assert (said.cached_tokens >= 100) == (key > 0)


def test_a_cancel_at_each_step_of_a_publication_leaves_nothing(world: World) -> None:
    for steps in range(9):
        service = world.open(prefill_chunk_tokens=64)
        service.submit(1, asked(prompt(30 + steps, 100), TOKENS))
        for _ in range(steps):
            service.step()
        service.cancel(1)
        while service.step():
            pass
        assert world.free_bytes == world.device.audit().capacity_bytes


def test_one_that_flees_where_it_was_to_share_what_it_has_goes_on_in_pages(
    ringed: tuple[Model, Tokenizer], said_by_generate: Greedy
) -> None:
    """An older client wants the memory at the boundary at which the end of the prompt is reached."""
    world = World(*ringed, granules=50, blocks=400)
    port = world.device.open_port()
    memory = port.memory(SequenceSpec(world.model.geometry, Layout.TOKEN_MAJOR, 500))
    [outcome] = port.submit([Grow(memory, 4)]).settle()
    assert outcome.error is None
    service, ids = world.open(fallback=Fallback.HOST, prefill_chunk_tokens=32), prompt(1, 100)
    service.submit(1, asked(ids, TOKENS))
    while not service.statistics().generated_tokens:
        service.step()
    [outcome] = port.submit([Grow(memory, 500)]).settle()
    assert isinstance(outcome.error, OutOfBudget)
    [results] = world.finish([service])
    assert results[1].text == said_by_generate(ids, TOKENS)  # type: ignore[union-attr]
    assert service.statistics().moves >= 1
    memory.close()
    world.close()
