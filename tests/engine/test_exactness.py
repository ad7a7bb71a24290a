"""In float32 the engine's greedy tokens are those of transformers' own generate(), whatever shares the batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any

import pytest

from kvcluster import Layout, LocalDevice
from kvcluster.engine.model import Model
from kvcluster.testing.models import WINDOW_TOKENS
from tests.engine.generated import drawn_prompts, greedy_ids
from tests.engine.on_device import Arrival, Loop, Running, take_step

FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "gemma3")
NEW_TOKENS = 64
PROMPT_TOKENS = (1, 2, 5, 11, 12, 13, 40, 90)  # on both sides of the window, and far beyond it

ByFamily = Callable[[str], Any]


@cache
def prompts() -> list[list[int]]:
    return drawn_prompts(PROMPT_TOKENS, seed=7)


@pytest.fixture(scope="session")
def wanted(reference: ByFamily) -> ByFamily:
    """What generate() gives for each prompt by itself."""
    return cache(lambda family: [greedy_ids(reference(family), p, new_tokens=NEW_TOKENS) for p in prompts()])


def texts(sequences: list[Running]) -> list[list[int]]:
    return [sequence.new_ids for sequence in sequences]


@pytest.mark.parametrize(
    ("family", "layout"), [*product(("llama", "gemma3"), Layout), *product(FAMILIES[1:4], [Layout.TOKEN_MAJOR])]
)
def test_eight_prompts_arriving_at_different_steps_get_the_tokens_of_generate(
    family: str, layout: Layout, opened: ByFamily, wanted: ByFamily, device: LocalDevice
) -> None:
    arrivals = [Arrival(prompt, step=3 * number) for number, prompt in enumerate(prompts())]
    sequences = Loop(layout).run(opened(family), device, arrivals)
    assert texts(sequences) == wanted(family)
    assert max(sequence.kv.commits for sequence in sequences) >= 2  # a text went on behind a mapping's end


@pytest.mark.parametrize(
    ("family", "chunk_tokens"), [*product(("llama", "gemma3"), (1, 7, WINDOW_TOKENS + 3)), *product(FAMILIES[1:4], [7])]
)
def test_a_prompt_in_chunks_gets_the_tokens_of_generate(
    family: str, chunk_tokens: int, opened: ByFamily, wanted: ByFamily, device: LocalDevice
) -> None:
    arrivals = [Arrival(prompt) for prompt in prompts()]
    sequences = Loop(chunk_tokens=chunk_tokens).run(opened(family), device, arrivals)
    assert texts(sequences) == wanted(family)
    assert min(sequence.kv.commits for sequence in sequences) >= 2


@pytest.mark.parametrize("family", FAMILIES)
def test_the_greedy_texts_would_show_a_fault(family: str, wanted: ByFamily) -> None:
    assert min(len(set(text)) for text in wanted(family)) >= 30


@pytest.mark.parametrize("family", FAMILIES)
def test_one_wrong_row_of_k_changes_the_text(
    family: str, opened: ByFamily, wanted: ByFamily, device: LocalDevice
) -> None:
    model: Model = opened(family)
    running = Running(model, device, Loop(new_tokens=NEW_TOKENS), prompts()[6])
    take_step(model, [running], 512)
    running.kv.views(1).k[0][:, running.computed - 2] *= -8  # the key of one token, in one layer of several
    while len(running.new_ids) < NEW_TOKENS:
        take_step(model, [running], 512)
    assert running.new_ids != wanted(family)[6]
