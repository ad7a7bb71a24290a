"""docs/OPERATIONS.md has the table of metrics that the code has."""

from __future__ import annotations

from actors.metric_table import markdown_rows
from tests.docs.named_tests import text_of


def test_the_table_of_metrics_is_the_codes() -> None:
    lines = text_of("OPERATIONS.md").splitlines()
    wanted = list(markdown_rows())
    first = lines.index(wanted[0])
    assert lines[first : first + len(wanted)] == wanted
    assert not lines[first + len(wanted)].startswith("|")
