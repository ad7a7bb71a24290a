"""Errors for people: one sentence on standard error and exit code 2, no traceback.

Only what a person can do something about is caught; a broken invariant is our bug and shows where it happened.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from kvcluster.cli.listeners import reader_may_leave
from kvcluster.config import ConfigError
from kvcluster.errors import InvariantBroken, KvClusterError

WRONG_USE = 2


def say(sentence: str) -> None:
    """One line on standard error, whatever `sentence` holds."""
    tell(f"kvcluster: {' '.join(sentence.split())}")


def tell(line: str) -> None:
    """A line on standard error, for whoever may be reading it."""
    with reader_may_leave(sys.stderr):
        typer.echo(line, err=True)


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
