"""Six lines to answer, and where the answers go."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.batch.stand_in import line, write_input


@pytest.fixture
def six(tmp_path: Path) -> Path:
    return write_input(tmp_path / "in.jsonl", *(line(f"id {n}", f"prompt {n}") for n in range(1, 7)))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"
