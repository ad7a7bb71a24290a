"""Of what Ray prints the log of a node that died is kept back, and nothing else."""

from __future__ import annotations

import io
from contextlib import redirect_stdout

import pytest

from actors.ray_words import RaysWords

REPORT = "(raylet) Raylet is terminated. Termination is unexpected. Last 20 lines of the Raylet logs:\n    one\n    two"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ([REPORT], ""),
        (["first", REPORT, "last"], "first\nlast\n"),
        (["(raylet) The node with node id: f has been marked dead because\n\t(1)", "last"], "last\n"),
        ([REPORT, "", "last"], "\nlast\n"),
        (["(raylet) a worker died", "two\nlines"], "(raylet) a worker died\ntwo\nlines\n"),
    ],
)
def test_whole_reports_of_nodes_that_died_are_kept_back_and_all_else_is_shown(said: list[str], shown: str) -> None:
    heard = io.StringIO()
    with redirect_stdout(RaysWords(heard)):
        for text in said:
            print(text)
    assert heard.getvalue() == shown
