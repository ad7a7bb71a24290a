"""One group of operations under way: done whole, or as if it had never been.

What can fail is noted in the transaction with its undo. What cannot be undone (handles pooled or destroyed, a request
ended) waits in `after` until the whole group is kept, and cannot fail.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kvcluster.memory.handle import Handle
from kvcluster.transaction import Transaction


@dataclass(slots=True)
class Work:
    """`handed` are the handles that the group's commits hand over, `released` those that it takes back."""

    txn: Transaction = field(default_factory=Transaction)
    after: list[Callable[[], None]] = field(default_factory=list)
    handed: list[Handle] = field(default_factory=list)
    released: list[Handle] = field(default_factory=list)

    def follow(self) -> None:
        """The group is kept: do what follows."""
        for act in self.after:
            act()
