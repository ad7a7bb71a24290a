from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from kvcluster import LocalDevice, open_device
from kvcluster.engine.model import Model, open_model
from kvcluster.testing.invariants import assert_nothing_lost
from kvcluster.testing.models import make_model
from tests.engine.on_device import CAPACITY_BYTES, GRANULE_BYTES


@pytest.fixture(scope="session", autouse=True)
def _quiet_transformers() -> Iterator[None]:
    logging.disable_progress_bar()
    yield
    logging.enable_progress_bar()


@pytest.fixture(scope="session")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a small model of a family."""
    return cache(lambda family: make_model(tmp_path_factory.mktemp("models") / family, family))


@pytest.fixture(scope="session")
def opened(model_of: Callable[[str], Path]) -> Callable[[str], Model]:
    """A small model of a family, opened by the engine in float32."""
    return cache(lambda family: open_model(model_of(family), dtype=torch.float32, threads=1))


@pytest.fixture(scope="session")
def reference(model_of: Callable[[str], Path]) -> Callable[[str], Any]:
    """The same model as transformers runs it by itself; its texts have no end."""

    def loaded(family: str) -> Any:
        model = AutoModelForCausalLM.from_pretrained(model_of(family), dtype=torch.float32).eval()
        model.generation_config.eos_token_id = None
        return model

    return cache(loaded)


@pytest.fixture
def device() -> Iterator[LocalDevice]:
    """A device of the test's own; when all its memories are closed, every byte is free again."""
    with open_device("host", memory=CAPACITY_BYTES, granule=GRANULE_BYTES) as device:
        yield device
        for memory in device.port.memories():
            memory.close()
        assert_nothing_lost(device)
