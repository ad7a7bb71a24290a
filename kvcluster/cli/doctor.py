"""`kvcluster doctor`: what this machine offers and what will bite, each with a remedy. Starts nothing, needs no Ray.

Exit codes: 0, or 1 where something is a problem; a note is none.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Annotated

import typer

from kvcluster.cli.listeners import reader_may_leave
from kvcluster.services.doctor import Finding, Status, examine

SOUND, PROBLEMS = 0, 1
_COLOURS = {Status.OK: typer.colors.GREEN, Status.NOTE: typer.colors.YELLOW, Status.PROBLEM: typer.colors.RED}


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Say what this machine offers and what will bite, each with a remedy. Exit code 1 if there is a problem."""
    found: list[Finding] = []
    with reader_may_leave(sys.stdout):
        if as_json:
            found.extend(examine())
            typer.echo(json.dumps({"findings": [asdict(each) for each in found], **_counts(found)}, indent=2))
        else:
            for line in _lines(examine(), found):
                typer.echo(line)
    raise typer.Exit(PROBLEMS if _counts(found)["problem"] else SOUND)


def _lines(findings: Iterable[Finding], seen: list[Finding]) -> Iterator[str]:
    """Each as soon as it is found, and the counts at the end."""
    for each in findings:
        seen.append(each)
        yield f"{typer.style(f'{each.status:8}', fg=_COLOURS[each.status])} {each.topic}: {each.sentence}"
        if each.remedy:
            yield f"{'':8}   -> {each.remedy}"
    counts = _counts(seen)
    yield f"{counts['ok']} ok, {counts['note']} to note, {counts['problem']} in the way"


def _counts(found: list[Finding]) -> dict[str, int]:
    by_status = Counter(each.status for each in found)
    return {status.value: by_status[status] for status in Status}
