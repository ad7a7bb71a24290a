"""`kvcluster failpoints` lists every place, for people and as JSON."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from kvcluster.cli.main import app
from kvcluster.failpoints import Failpoint


def said(*options: str) -> str:
    ran = CliRunner().invoke(app, ["failpoints", *options])
    assert (ran.exit_code, ran.stderr) == (0, "")
    return ran.stdout


def test_every_failpoint_is_a_line_with_who_passes_it_and_what_is_done_there() -> None:
    lines = said().splitlines()
    for point in Failpoint:
        [line] = [line for line in lines if line.startswith(f"{point} ")]
        assert all(kind in line for kind in point.passers)
        assert line.endswith(point.what)


def test_the_object_holds_the_same() -> None:
    listed = json.loads(said("--json"))["failpoints"]
    assert [each["name"] for each in listed] == list(Failpoint)
    assert [tuple(each["passed_by"]) for each in listed] == [point.passers for point in Failpoint]
