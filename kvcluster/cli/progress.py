"""How far the job is: a bar on a terminal, a plain line every few seconds elsewhere. Always on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kvcluster.cli.sentences import tell
from kvcluster.services.batch.job import Progress

LINE_EVERY_S = 5.0

Tell = Callable[[Progress], None]


@contextmanager
def shown_progress(total: int) -> Iterator[Tell]:
    """A function to call after each result."""
    if sys.stderr.isatty():
        with _bar(total) as update:
            yield update
    else:
        yield PlainProgress(tell, clock=time.monotonic)


class PlainProgress:
    """One line at the first result, at the last one, and in between at most every `LINE_EVERY_S`."""

    def __init__(self, write: Callable[[str], None], *, clock: Callable[[], float]) -> None:
        self._write = write
        self._clock = clock
        self._due = 0.0

    def __call__(self, progress: Progress) -> None:
        if self._clock() >= self._due or progress.done == progress.total:
            self._due = self._clock() + LINE_EVERY_S
            self._write(sentence(progress))


def sentence(progress: Progress) -> str:
    """ "3 of 12 lines, 1 failed, 96 tokens" """
    return f"{progress.done} of {progress.total} lines, {_rest(progress)}"


def _rest(progress: Progress) -> str:
    return f"{progress.failed} failed, {progress.generated_tokens} tokens{_deaths(progress.lost_workers)}"


def _deaths(workers: int) -> str:
    if workers > 1:
        return f", {workers} workers died and their lines go on"
    return ", 1 worker died and its lines go on" if workers else ""


@contextmanager
def _bar(total: int) -> Iterator[Tell]:
    from rich import progress as rich  # here, because --help must come at once
    from rich.console import Console

    columns = (
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        rich.TextColumn("{task.description}"),
        rich.TimeElapsedColumn(),
    )
    with rich.Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=total)
        yield lambda progress: bar.update(task, completed=progress.done, description=_rest(progress))
