"""What one port has open: memories that are not closed, and frames whose outcomes were not taken yet.

Not what backs them (`services.holdings`), nor what an owner knows of them: this is the list that a step, a restart and
a session's end go through. A port enters and strikes; `services.recovery` loses frames, and gives all of it up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kvcluster.errors import DeviceUnreachable

if TYPE_CHECKING:
    from kvcluster.services.pending import PendingAsks
    from kvcluster.services.sequence import SequenceMemory


class OpenMemories:
    """For one thread."""

    def __init__(self) -> None:
        self._memories: set[SequenceMemory] = set()
        self._unsettled: dict[PendingAsks, None] = {}  # in the order in which they were sent

    def all(self) -> tuple[SequenceMemory, ...]:
        return tuple(self._memories)

    def opened(self, memory: SequenceMemory) -> None:
        """There is one more."""
        self._memories.add(memory)

    def ended(self, memory: SequenceMemory) -> None:
        """It is closed, whatever comes of the frame that says so."""
        self._memories.discard(memory)

    def sent(self, pending: PendingAsks) -> None:
        """A frame is on its way."""
        self._unsettled[pending] = None

    def settled(self, pending: PendingAsks) -> None:
        """Its outcomes are taken."""
        self._unsettled.pop(pending, None)

    def lose(self, loss: DeviceUnreachable) -> None:
        """Nothing that is on its way counts as executed. Its outcomes are still to be taken."""
        for pending in self._unsettled:
            pending.lose(loss)

    def give_up(self, end: Callable[[SequenceMemory], object]) -> None:
        """`end` each memory, and wait for no frame any more.

        Raises:
            Whatever `end` does. Those that it has not ended are still here.
        """
        for memory in self.all():
            memory.in_flight = False
            end(memory)
            self.ended(memory)
        self._unsettled.clear()
