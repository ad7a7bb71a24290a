"""docs/FAULTS.md names tests that exist, and at least one for each fault."""

from __future__ import annotations

import pytest

from tests.docs.named_tests import exists, named_tests, text_of

FAULTS = text_of("FAULTS.md")
ROWS = [line for line in FAULTS.splitlines() if line.startswith("| ") and not line.startswith("| fault |")]


@pytest.mark.parametrize(("file", "name"), named_tests(FAULTS))
def test_a_test_that_shows_what_happens_exists(file: str, name: str) -> None:
    assert exists(file, name)


def test_every_fault_has_its_row_of_three_cells_with_a_test() -> None:
    assert len(ROWS) == 65
    assert [row for row in ROWS if row.count(" | ") != 2 or not named_tests(row)] == []


def test_everything_in_the_last_cell_is_a_named_test() -> None:
    cells = [row.removesuffix(" |").split(" | ")[2] for row in ROWS]
    assert [cell for cell in cells if cell.count("`") != 2 * len(named_tests(cell))] == []
