from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from kvcluster.engine.model import Model, open_model
from kvcluster.engine.tokenizer import Tokenizer, open_tokenizer
from kvcluster.testing.models import make_model
from tests.request.world import World

PROMPTS = tuple(tuple(2 + (7 * i + 13 * j + j * j * i) % 500 for j in range(8 + 3 * i)) for i in range(8))
"""Eight prompts of 8 to 29 tokens, all different."""


@pytest.fixture(scope="session", autouse=True)
def _quiet_transformers() -> Iterator[None]:
    logging.disable_progress_bar()
    yield
    logging.enable_progress_bar()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("request") / "llama", "llama")


@pytest.fixture(scope="session")
def model(folder: Path) -> Model:
    return open_model(folder, dtype=torch.float32, threads=1)


@pytest.fixture(scope="session")
def tokenizer(folder: Path) -> Tokenizer:
    return open_tokenizer(folder)


@pytest.fixture(scope="session")
def greedy(folder: Path) -> Callable[[tuple[int, ...], int], list[int]]:
    """What transformers' own generate() continues a prompt with, token by token; it knows no end."""
    reference: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    reference.generation_config.eos_token_id = None

    @cache
    def continued(prompt: tuple[int, ...], count: int) -> list[int]:
        ids = torch.tensor([prompt])
        said = reference.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count)
        tokens: list[int] = said[0, len(prompt) :].tolist()
        return tokens

    return continued


@pytest.fixture
def worlds(model: Model, tokenizer: Tokenizer) -> Iterator[Callable[..., World]]:
    """Makes worlds, and holds at the end that each is whole."""
    made: list[World] = []

    def make(**parts: Any) -> World:
        made.append(World(model, tokenizer, **parts))
        return made[-1]

    yield make
    for world in made:
        world.close()
