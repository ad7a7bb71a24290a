"""`kvcluster status`: who is there, what memory he has, how busy he is, and who died last and of what.

Devices and host pages count their books to answer, as for `kvcluster audit`. Exit codes: 0 all answer and all sums,
1 something does not, with its process in a sentence, 2 there is no cluster. Nobody is waited for longer than
seconds, and one that hangs is shown too.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from kvcluster.cli.listeners import reader_may_leave
from kvcluster.cli.sentences import one_sentence, say
from kvcluster.cli.standing_rows import DEATH_HEADINGS, SIZE_HEADINGS, UNKNOWN, deaths, known, place, short, sizes
from kvcluster.cli.tables import write_table
from kvcluster.services.standing import ClusterStanding, OwnerStanding, WorkerStanding, picture

ALL_ANSWER, SOME_DO_NOT = 0, 1
OWNER_HEADINGS = ("memory", "node", "process", "started", "epoch", "requests", *SIZE_HEADINGS)
SESSION_HEADINGS = ("client of", "node", "process", "session", "silent")
WORKER_HEADINGS = ("worker", "node", "process", "memory", "state", "running", "waiting")


def status(
    ray_address: Annotated[
        str | None, typer.Option(help="The running cluster, as RAY_ADDRESS: HOST:PORT; else the one of this machine.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show devices, host pages, their clients, workers, and the last deaths with their causes.

    Exit codes: 0 all answer and all sums, 1 something does not, 2 no cluster.
    """
    with one_sentence():
        from actors.standings import cluster_standing  # here, because Ray takes seconds to import

        found = cluster_standing(ray_address)
    with reader_may_leave(sys.stdout):
        if as_json:
            typer.echo(json.dumps(picture(found), indent=2))
        else:
            _write_tables(found)
    for complaint in found.complaints:
        say(complaint)
    raise typer.Exit(SOME_DO_NOT if found.complaints else ALL_ANSWER)


def _write_tables(found: ClusterStanding) -> None:
    if not found.owners and not found.workers:
        typer.echo("nobody of kvcluster is on this cluster")
    tables = [
        (OWNER_HEADINGS, [_owner_row(owner) for owner in found.owners]),
        (SESSION_HEADINGS, [row for owner in found.owners for row in _session_rows(owner)]),
        (WORKER_HEADINGS, [_worker_row(worker) for worker in found.workers]),
        (DEATH_HEADINGS, deaths(found.deaths, time.time())),
    ]
    _write_each([(headings, rows) for headings, rows in tables if rows])


def _write_each(tables: Sequence[tuple[Sequence[str], list[tuple[str, ...]]]]) -> None:
    for number, (headings, rows) in enumerate(tables):
        if number:
            typer.echo("")
        write_table(headings, rows)


def _owner_row(owner: OwnerStanding) -> tuple[str, ...]:
    who = (*place(owner), known(owner.number), known(owner.epoch))
    if owner.complaint is not None:
        return *who, *(UNKNOWN,) * (len(OWNER_HEADINGS) - len(who))
    return *who, f"{owner.running_requests} of {owner.open_requests}", *sizes(owner)


def _session_rows(owner: OwnerStanding) -> Iterator[tuple[str, ...]]:
    for session in owner.sessions:
        where = (owner.name, short(owner.node_id))
        yield *where, known(session.pid), session.state, f"{session.silent_s:.1f} s"


def _worker_row(worker: WorkerStanding) -> tuple[str, ...]:
    who = place(worker)
    if worker.word is None:
        return *who, *(UNKNOWN,) * (len(WORKER_HEADINGS) - len(who))
    word = worker.word
    return *who, word.device, word.state.value, str(word.running), str(word.waiting)
