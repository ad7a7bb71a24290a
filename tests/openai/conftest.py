from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.utils import logging

from kvcluster.engine.model import Model, open_model
from kvcluster.engine.tokenizer import open_tokenizer
from kvcluster.testing.models import make_model
from tests.openai.served import Served, serving
from tests.request.world import World


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    logging.disable_progress_bar()
    yield make_model(tmp_path_factory.mktemp("openai") / "llama", "llama")
    logging.enable_progress_bar()


@pytest.fixture(scope="session")
def model(folder: Path) -> Model:
    return open_model(folder, dtype=torch.float32, threads=1)


@pytest.fixture
def serve(folder: Path, model: Model) -> Iterator[Callable[..., Served]]:
    """Starts a request service of its own device, with its loop on a thread; each is whole again at the end."""
    with ExitStack() as all_served:

        def start(*, granules: int = 64, **settings: Any) -> Served:
            world = World(model, open_tokenizer(folder), granules)
            return all_served.enter_context(serving(world, **settings))

        yield start
