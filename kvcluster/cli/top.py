"""`kvcluster top`: a live view of memory, workers, what was refused and who died, again and again until Ctrl-C.

It looks as `kvcluster status` does, at books as they are kept: nobody counts anything for it, and nobody who hangs is
waited for longer than seconds (a row says "no answer"). What is told a second is what rose between two looks. Without a
terminal, and with --once or --json, two looks are taken and one frame printed. Frames are drawn in `cli.top_frame`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Annotated, TextIO

import typer

from kvcluster.cli.interrupts import heed, stopped_once
from kvcluster.cli.listeners import reader_may_leave
from kvcluster.cli.sentences import one_sentence, say
from kvcluster.services.paces import Looks
from kvcluster.services.standing import ClusterStanding, picture

ALL_ANSWER, SOME_DO_NOT = 0, 1
PIPE_COLUMNS = 200  # of a frame that no terminal bounds

Look = Callable[[], ClusterStanding]


def top(
    ray_address: Annotated[
        str | None, typer.Option(help="The running cluster, as RAY_ADDRESS: HOST:PORT; else the one of this machine.")
    ] = None,
    interval: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.1, max=3600.0)] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Look twice, print one frame, and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The same as one JSON object.")] = False,
) -> None:
    """Watch devices, host pages, workers, refusals and the last deaths. Ctrl-C ends it.

    Exit codes: 0 all answer (Ctrl-C too), 1 with --once or --json: somebody does not, 2 no cluster.
    """
    screen = sys.stdout  # in the block below it is Ray's, for its own words
    is_live = screen.isatty() and not once and not as_json
    with one_sentence(), stopped_once():
        from actors.standings import cluster_glances  # here, because Ray takes seconds to import

        with cluster_glances(ray_address) as glance:
            heed()  # Ray has set handlers of its own
            look = Looks(glance, clock=time.monotonic).look
            if is_live:
                return _watch(look, interval, screen)
            found = _looked_twice(look, interval)
    raise typer.Exit(_print_one(found, as_json=as_json))


def _looked_twice(look: Look, interval_s: float) -> ClusterStanding:
    look()
    time.sleep(interval_s)
    return look()


def _print_one(found: ClusterStanding, *, as_json: bool) -> int:
    with reader_may_leave(sys.stdout):
        if as_json:
            typer.echo(json.dumps(picture(found), indent=2))
        else:
            _draw(found)
    for complaint in found.complaints:
        say(complaint)
    return SOME_DO_NOT if found.complaints else ALL_ANSWER


def _draw(found: ClusterStanding) -> None:
    from rich.console import Console  # here, because --help must come at once

    from kvcluster.cli.top_frame import frame

    Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS).print(frame(found, now_s=time.time()))


def _watch(look: Look, interval_s: float, screen: TextIO) -> None:
    """Until Ctrl-C, which is how it is meant to end."""
    from rich.console import Console
    from rich.live import Live

    from kvcluster.cli.top_frame import frame

    try:
        with Live(console=Console(file=screen), screen=True, auto_refresh=False) as live:
            while True:
                live.update(frame(look(), now_s=time.time()), refresh=True)
                time.sleep(interval_s)
    except KeyboardInterrupt:
        return
