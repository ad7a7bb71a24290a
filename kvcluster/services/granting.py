"""Holding bytes of an owner's budget for a request, or noting that it waits: the same for a device and for host pages.

How many bytes are asked for, and whether so many could ever fit, is said by `services.spending` and
`services.pages.spending`; what a refusal leads to is in `services.queue`.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvcluster.budget.governor import Governor
from kvcluster.errors import OutOfBudget
from kvcluster.ids import GrantId
from kvcluster.services.pressure import Holder
from kvcluster.services.queue import Queue
from kvcluster.services.work import Work


class Granting:
    """Of one owner; `holders` are all that are open there."""

    def __init__(self, governor: Governor, queue: Queue, holders: Iterable[Holder]) -> None:
        self._governor = governor
        self._queue = queue
        self._holders = holders

    def ask(self, identity: GrantId, holder: Holder, size_bytes: int, work: Work) -> None:
        """Hold so much for `holder`. What is retained goes, as far as that helps.

        Raises:
            OutOfBudget: too little is free; one that holds nothing yet is remembered as waiting, and others are asked
                to give back. Nothing else changed.
            NotAllowed: the grant's number was used. Nothing changed.
        """
        try:
            self._governor.ask(
                identity,
                size_bytes,
                tenant=holder.tenant,
                headroom=self._queue.headroom(holder),
                oldest_arrival=self._queue.oldest(),
            )
        except OutOfBudget as refusal:
            self._queue.refused(holder, refusal, self._holders)
            raise
        work.txn.doing(f"grant {identity.number}", 0, undo=lambda _: self._governor.forget(identity))
        work.after.append(lambda: self._queue.served(holder))
