"""`kvcluster failpoints`: every place where a fault test may stop a process, who passes it, and what is done there.

How one is armed is in `kvcluster.testing.arming`, which stands below the list. Exit code 0.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from kvcluster.cli.listeners import reader_may_leave
from kvcluster.failpoints import ENVIRONMENT, Failpoint

HOW = f"""
Arm them with {ENVIRONMENT}, the setting failpoints, or the arm message of an actor:
  client.commit.mapped=kill@2   the second time that a process passes it; @* each time, @10% ten of each hundred
  pages:device.frame.stored=hang:FILE   only in processes of that kind
Actions: raise, delay:SECONDS, hang:FILE, kill, exit; and lose, where a reply arrives. Several: with ; between.
marks=FOLDER: each of them once, whoever passes it first; FOLDER then says who did."""


def failpoints(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Every named place where a fault test may raise, delay, hang or kill."""
    with reader_may_leave(sys.stdout):
        for line in _json() if as_json else _lines():
            typer.echo(line)


def _json() -> Iterator[str]:
    places = [{"name": point, "passed_by": point.passers, "what": point.what} for point in Failpoint]
    yield json.dumps({"failpoints": places}, indent=2)


def _lines() -> Iterator[str]:
    places = [(str(point), ", ".join(point.passers), point.what) for point in Failpoint]
    rows = [("failpoint", "passed by", "there"), *places]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for name, passers, what in rows:
        yield f"{name:<{widths[0]}}  {passers:<{widths[1]}}  {what}"
    yield HOW
