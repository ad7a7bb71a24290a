"""`kvcluster stop`: everything of ours on a running cluster ends, in order; Ray goes on.

Exit codes: 0 all ended, 1 something did not, each with its process in a sentence, 2 there is no cluster. A job whose
cluster is stopped keeps its finished results, and the same command continues where it stopped.
"""

from __future__ import annotations

from typing import Annotated

import typer

from kvcluster.cli.sentences import one_sentence, say, tell

ALL_ENDED, SOME_DID_NOT = 0, 1
_NODE_CHARACTERS = 8


def stop(
    ray_address: Annotated[
        str | None, typer.Option(help="The running cluster, as RAY_ADDRESS: HOST:PORT; else the one of this machine.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that a worker may take for its last step.", min=0.1)] = 30.0,
    force: Annotated[bool, typer.Option("--force", help="End what does not end by itself, at once.")] = False,
) -> None:
    """End all workers, devices and host pages of a cluster, at a step boundary; finished results are kept.

    Exit codes: 0 all ended, 1 some did not, 2 no cluster.
    """
    with one_sentence():
        from actors.ending import force_cluster, stop_cluster  # here, because Ray takes seconds to import

        remaining = force_cluster(ray_address) if force else stop_cluster(ray_address, drain_s=timeout)
    for each in remaining:
        where = f"{each.name} on node {each.node_id[:_NODE_CHARACTERS]} (process {each.pid or 'unknown'})"
        say(f"{where} did not end: {each.reason}")
    if not remaining:
        tell("nothing of kvcluster runs on this cluster any more")
    raise typer.Exit(SOME_DID_NOT if remaining else ALL_ENDED)
