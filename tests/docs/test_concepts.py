"""docs/CONCEPTS.md names things that exist."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

CONCEPTS = (Path(__file__).parents[2] / "docs" / "CONCEPTS.md").read_text(encoding="utf-8")
TARGET = re.compile(r"`(kvcluster(?:\.\w+)*:[\w.]+)`")
TARGETS = sorted(set(TARGET.findall(CONCEPTS)))


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_names_something_that_exists(target: str) -> None:
    module, _, path = target.partition(":")
    thing = importlib.import_module(module)
    for name in path.split("."):
        assert hasattr(thing, name)
        thing = getattr(thing, name)


def test_every_row_of_every_table_has_exactly_one_target() -> None:
    lines = [line for line in CONCEPTS.splitlines() if line.startswith("| ")]
    rows = [line for line in lines if not line.startswith(("| their name", "| name"))]
    assert len(rows) > 50
    assert [row for row in rows if len(TARGET.findall(row)) != 1] == []


def test_names_that_are_not_here_yet_have_no_target() -> None:
    assert TARGET.findall(CONCEPTS.partition("## Not here yet")[2]) == []
