"""One group of operations under way: done whole, or as if it had never been.

What can fail is noted in the transaction with its undo. What cannot be undone (handles pooled or destroyed, a request
ended) waits in `after` until the whole group is kept, and cannot fail. What the client has imported already (`known`)
and how many runs of windows the answers may name (`most_runs`) come with the group.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sized
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from kvcluster.errors import NotAllowed
from kvcluster.ids import HandleId
from kvcluster.memory.handle import Handle
from kvcluster.memory.reservation import Use
from kvcluster.transaction import Transaction


@dataclass(slots=True)
class Work:
    """`handed` are the handles that the answers hand over, `released` those that the request has no longer; `left`
    are the prefixes that it left clean, newest first, and `retain_tokens` how much of it is to stay."""

    most_runs: int = sys.maxsize
    known: AbstractSet[HandleId] = frozenset()
    txn: Transaction = field(default_factory=Transaction)
    after: list[Callable[[], None]] = field(default_factory=list)
    handed: list[Handle] = field(default_factory=list)
    released: list[Handle] = field(default_factory=list)
    left: list[Use] = field(default_factory=list)
    retain_tokens: int = 0
    is_ended: bool = False
    runs_named: int = 0

    def naming(self, runs: Sized) -> None:
        """An answer will name these runs of windows, or blocks.

        Raises:
            NotAllowed: they do not fit into the frame's reply. Nothing changed.
        """
        if self.runs_named + len(runs) > self.most_runs:
            left = self.most_runs - self.runs_named
            raise NotAllowed(
                reason=f"the reply has room for {left} more runs of windows or blocks: ask in another frame"
            )
        self.runs_named += len(runs)

    def follow(self) -> None:
        """The group is kept: do what follows."""
        for act in self.after:
            act()
