"""A joiner of a prompt of any length computes from where the shared granules end, and never writes into them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvcluster.testing.models import make_model
from tests.engine.joining import LENGTHS

ROOT = Path(__file__).parents[2]


FAMILIES: dict[str, tuple[str, dict[str, int]]] = {
    "a granule's edge inside a vector": ("llama", {"head_dim": 40}),
    "whole vectors below the edge": ("qwen3", {}),
    "with rings and their snapshots": ("gemma3", {"head_dim": 40}),
}


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, tuple[int, bool]]]:
    """What one process found that joined prefixes of every model, by the model's name here."""
    at = tmp_path_factory.mktemp("joined")
    folders = [
        make_model(at / str(number), family, **changes) for number, (family, changes) in enumerate(FAMILIES.values())
    ]
    command = [sys.executable, "-m", "tests.engine.joining", *map(str, folders)]
    child = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert child.returncode == 0, child.stderr  # -11 were a write into what is mapped for reading
    return dict(zip(FAMILIES, json.loads(child.stdout), strict=True))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("model", FAMILIES)
def test_a_prefix_of_every_length_gives_the_tokens_of_a_miss(
    model: str, joined: dict[str, dict[str, tuple[int, bool]]]
) -> None:
    found = joined[model]
    assert len(found) == 2 * len(LENGTHS)
    assert [case for case, (_, same) in found.items() if not same] == []
    assert len({begins for begins, _ in found.values()}) >= 3
