from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from kvcluster.engine.model import open_model
from kvcluster.engine.tokenizer import open_tokenizer
from kvcluster.testing.models import make_model
from tests.exact.subject import Subject
from tests.request.world import World


@pytest.fixture(scope="session", autouse=True)
def _quiet_transformers() -> Iterator[None]:
    logging.disable_progress_bar()
    yield
    logging.enable_progress_bar()


@pytest.fixture(scope="session")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Subject]:
    """A small model of a family, opened by both; changes replace fields of the family."""

    @cache
    def made(family: str, **changes: Any) -> Subject:
        folder: Path = make_model(tmp_path_factory.mktemp("exact") / family, family, **changes)
        return opened_by_both(folder, threads=1)

    return made


def opened_by_both(folder: Path, *, threads: int) -> Subject:
    """The model in `folder` in float32, as the engine runs it and as transformers does."""
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    reference.generation_config.eos_token_id = None  # its texts have no end
    model = open_model(folder, dtype=torch.float32, threads=threads)
    return Subject(model, open_tokenizer(folder), reference)


@pytest.fixture
def worlds() -> Iterator[Callable[..., World]]:
    """Makes worlds on a subject's model, each with a device of its own; holds at the end that each is whole."""
    made: list[World] = []

    def make(subject: Subject, **parts: Any) -> World:
        made.append(World(subject.model, subject.tokenizer, **parts))
        return made[-1]

    yield make
    for world in made:
        world.close()
        assert world.services
