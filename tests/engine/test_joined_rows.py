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


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("family", "changes"),
    [
        pytest.param("llama", {"head_dim": 40}, id="a granule's edge inside a vector"),
        pytest.param("qwen3", {}, id="whole vectors below the edge"),
        pytest.param("gemma3", {"head_dim": 40}, id="with rings and their snapshots"),
    ],
)
def test_a_prefix_of_every_length_gives_the_tokens_of_a_miss(
    family: str, changes: dict[str, int], tmp_path: Path
) -> None:
    folder = make_model(tmp_path / family, family, **changes)
    command = [sys.executable, "-m", "tests.engine.joining", str(folder)]
    child = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert child.returncode == 0, child.stderr  # -11 were a write into what is mapped for reading
    found: dict[str, tuple[int, bool]] = json.loads(child.stdout)
    assert len(found) == 2 * len(LENGTHS)
    assert [case for case, (_, same) in found.items() if not same] == []
    assert len({begins for begins, _ in found.values()}) >= 3
