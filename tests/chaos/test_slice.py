"""Two minutes of `make chaos`: a spread of cases over every kind of actor, on one Ray cluster of its own.

In a process of its own, because a process has one Ray.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(900)
@pytest.mark.no_cover
def test_whoever_is_killed_stopped_or_not_heard_costs_time_and_nothing_else(tmp_path: Path) -> None:
    figures = tmp_path / "slice.json"
    command = [sys.executable, "-m", "tests.chaos", "--slice", "--json", str(figures)]
    played = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert figures.exists(), played.stderr[-3000:]
    cases = json.loads(figures.read_text())["cases"]
    assert {case["case"]: case["complaint"] for case in cases} == {case["case"]: "" for case in cases}
    assert played.returncode == 0, played.stderr[-3000:]
    assert sum(case["kills"] for case in cases) >= 4
    assert sum(case["replays"] for case in cases) > 0
