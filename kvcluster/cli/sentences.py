"""Errors for people: one sentence on standard error and exit code 2, no traceback.

Only what a person can do something about is caught; a broken invariant is our bug and shows where it happened.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from kvcluster.config import ConfigError
from kvcluster.errors import InvariantBroken, KvClusterError

WRONG_USE = 2


def say(sentence: str) -> None:
    """One line on standard error, whatever `sentence` holds."""
    typer.echo(f"kvcluster: {' '.join(sentence.split())}", err=True)


@contextmanager
def one_sentence() -> Iterator[None]:
    """Ends the command with exit code 2 where the block raises one of our errors."""
    try:
        yield
    except InvariantBroken:
        raise
    except (KvClusterError, ConfigError) as error:
        say(str(error))
        raise typer.Exit(WRONG_USE) from None
