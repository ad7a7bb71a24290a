from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from kvcluster import LocalDevice, open_device
from kvcluster.testing.invariants import assert_nothing_lost
from kvcluster.testing.models import make_model


@pytest.fixture(scope="session", autouse=True)
def _quiet_transformers() -> Iterator[None]:
    logging.disable_progress_bar()
    yield
    logging.enable_progress_bar()


@pytest.fixture(scope="session")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """A small model of a family, as transformers runs it; its texts have no end."""

    def made(family: str) -> Any:
        folder = make_model(tmp_path_factory.mktemp("models") / family, family)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        model.generation_config.eos_token_id = None
        return model

    return cache(made)


@pytest.fixture
def device() -> Iterator[LocalDevice]:
    """A device of 4 MiB; nothing of it is lost at the end."""
    with open_device("host", memory="4MiB", granule="4KiB") as device:
        yield device
        for memory in device.port.memories():
            memory.close()
        assert_nothing_lost(device)
