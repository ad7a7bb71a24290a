"""docs/ARCHITECTURE.md names rooms and tests that exist."""

from __future__ import annotations

import re

import pytest

from tests.docs.named_tests import ROOT, exists, named_tests, text_of

ARCHITECTURE = text_of("ARCHITECTURE.md")
ROOMS = sorted(set(re.findall(r"^\| (\w+) \| .*\? \|", ARCHITECTURE, flags=re.MULTILINE)))


@pytest.mark.parametrize(("file", "name"), named_tests(ARCHITECTURE))
def test_a_test_that_holds_an_invariant_exists(file: str, name: str) -> None:
    assert exists(file, name)


def test_invariants_are_numbered_from_one_without_a_gap() -> None:
    numbers = [int(number) for number in re.findall(r"^\| M(\d+) \|", ARCHITECTURE, flags=re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))


def test_the_table_of_rooms_is_the_packages_that_there_are() -> None:
    packages = {folder.parent.name for folder in (ROOT / "kvcluster").glob("*/__init__.py")}
    assert set(ROOMS) == packages - {"cli"}
