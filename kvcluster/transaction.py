"""All or nothing, over steps that can fail half way and whose undo can fail too.

    with Transaction() as txn:
        done = txn.doing("map 3 windows", size_bytes, undo=lambda done: take_back(run, done))
        for ...:
            driver.map(...)
            done.count += 1
        txn.keep()

An undo is noted *before* its step's first call, with a count of what was done. Without `keep` the newest is undone
first. An undo that raises KvClusterError leaves its step in force: it becomes residue, and the error that started
it all is replaced by `Quarantined`, from which it hangs as the cause. An undo that fails never stops the undos of
other steps.

Lives on the ground floor because both sides of a commit need it: the owner's and the user's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from kvcluster.errors import KvClusterError, Quarantined, Residue


@dataclass(slots=True)
class Progress:
    """How much of one step was done; its undo takes back that much."""

    count: int = 0


@dataclass(frozen=True, slots=True)
class _Step:
    what: str
    size_bytes: int
    progress: Progress
    undo: Callable[[Progress], None]


class Transaction:
    """Steps with their undos; leaving the block without `keep` undoes them, newest first."""

    def __init__(self) -> None:
        self._steps: list[_Step] = []
        self._kept = False

    def doing(self, what: str, size_bytes: int, *, undo: Callable[[Progress], None]) -> Progress:
        """Note a step that is about to begin. The caller raises the count after each call that succeeded."""
        step = _Step(what, size_bytes, Progress(), undo)
        self._steps.append(step)
        return step.progress

    def keep(self) -> None:
        """Nothing is undone any more."""
        self._kept = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._kept:
            return
        residue = tuple(piece for step in reversed(self._steps) for piece in _undone(step))
        if residue:
            raise Quarantined(residue=residue) from error


def _undone(step: _Step) -> tuple[Residue, ...]:
    try:
        step.undo(step.progress)
    except Quarantined as failure:  # an undo made of parts names the parts that stay
        return failure.residue
    except KvClusterError:
        return (Residue(step.what, step.size_bytes),)
    return ()
