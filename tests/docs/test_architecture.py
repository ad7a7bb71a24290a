"""docs/ARCHITECTURE.md names rooms and tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ARCHITECTURE = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
NAMED_TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", ARCHITECTURE)))
ROOMS = sorted(set(re.findall(r"^\| (\w+) \| .*\? \|", ARCHITECTURE, flags=re.MULTILINE)))


@pytest.mark.parametrize(("file", "name"), NAMED_TESTS, ids=[name for _, name in NAMED_TESTS])
def test_a_test_that_holds_an_invariant_exists(file: str, name: str) -> None:
    assert re.search(rf"^def {name}\(", (ROOT / file).read_text(encoding="utf-8"), flags=re.MULTILINE)


def test_invariants_are_numbered_from_one_without_a_gap() -> None:
    numbers = [int(number) for number in re.findall(r"^\| M(\d+) \|", ARCHITECTURE, flags=re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))


def test_the_table_of_rooms_is_the_packages_that_there_are() -> None:
    packages = {folder.parent.name for folder in (ROOT / "kvcluster").glob("*/__init__.py")}
    assert set(ROOMS) == packages - {"cli"}
