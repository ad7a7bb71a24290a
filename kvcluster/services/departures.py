"""Memories that are given back once the work that uses them is over: who waits, what was sent, what became of it.

A release with a fence waits here, mapped and charged, until a step boundary finds the fence done. A boundary never
waits, so that the answer to what it sent may still be under way when a verb wants the memory: the verb waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvcluster.driver.protocol import Fence
from kvcluster.errors import DriverError
from kvcluster.services.asks import Ask, Outcome, Shed
from kvcluster.services.frames import in_frames
from kvcluster.services.pending import PendingAsks
from kvcluster.services.sequence import SequenceMemory


class Departures:
    """Of one port, whose `submit` sends a frame."""

    def __init__(self, submit: Callable[[Sequence[Ask]], PendingAsks]) -> None:
        self._submit = submit
        self._waiting: dict[SequenceMemory, Fence] = {}
        self._sent: tuple[PendingAsks, ...] = ()
        self._settled: list[Outcome] = []

    def wait(self, memory: SequenceMemory, fence: Fence) -> None:
        """It leaves when the work of `fence` is over."""
        self._waiting[memory] = fence

    def left(self, memory: SequenceMemory) -> None:
        """It was given back, whoever did it."""
        self._waiting.pop(memory, None)

    def advance(self) -> tuple[Outcome, ...]:
        """Send those whose work is over, and return what became of those that are answered. Waits for nothing."""
        if not self._sent and self._waiting:
            due = [Shed(m, fence) for m, fence in self._waiting.items() if not m.in_flight and is_over(fence)]
            self._sent = tuple(self._submit(frame) for frame in in_frames(due))
        if all(pending.ready() for pending in self._sent):
            self.settle()
        settled, self._settled = tuple(self._settled), []
        return settled

    def is_under_way(self, memory: SequenceMemory) -> bool:
        """Whether it was sent, and the answer was not used yet."""
        return memory.in_flight and any(ask.memory is memory for pending in self._sent for ask in pending.asks)

    def settle(self) -> None:
        """Wait for the answers; the next `advance` says what they are. Raises as `PendingAsks.settle`."""
        while self._sent:
            first, *others = self._sent
            self._sent = tuple(others)
            self._settled += first.settle()


def is_over(fence: Fence) -> bool:
    """Whether there is nothing to wait for: the work is done, or nobody can say (which an unmap then finds too)."""
    try:
        return fence.done()
    except DriverError:
        return True
