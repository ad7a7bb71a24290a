"""The command line, a module for each command. Parse, call, print; nothing is decided here.

Neither Ray nor torch is imported before a command needs it, so that --help and a wrong option answer at once.
"""

from __future__ import annotations

from typing import Annotated

import typer

from kvcluster.cli.audit import audit
from kvcluster.cli.doctor import doctor
from kvcluster.cli.failpoints import failpoints
from kvcluster.cli.plan import plan
from kvcluster.cli.run_batch import run_batch
from kvcluster.cli.sentences import one_sentence
from kvcluster.cli.serve import serve
from kvcluster.cli.status import status
from kvcluster.cli.stop import stop
from kvcluster.cli.top import top

app = typer.Typer(
    name="kvcluster",
    help="LLM inference on Ray with elastic, crash-safe KV-cache memory.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("run-batch")(run_batch)
app.command("serve")(serve)
app.command("plan")(plan)
app.command("doctor")(doctor)
app.command("audit")(audit)
app.command("status")(status)
app.command("top")(top)
app.command("stop")(stop)
app.command("failpoints")(failpoints)


@app.callback()
def _kvcluster() -> None:
    """LLM inference on Ray with elastic, crash-safe KV-cache memory."""


@app.command("model")
def model(name: Annotated[str, typer.Argument(help="gemma3-270m, or a model's folder.")]) -> None:
    """Make a model ready, once, and print its folder."""
    with one_sentence():
        from kvcluster.engine.pretrained import model_folder  # here, because --help must come at once

        typer.echo(model_folder(name))
