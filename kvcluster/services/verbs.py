"""A request's verbs one at a time: one ask sent alone and waited for, and the verbs that take more than one.

This is what `SequenceMemory` calls; where a verb is one ask it says which. An engine that serves many requests sends
its asks together, and never waits (`DevicePort.submit`). What is refused is raised here; an outcome's state is that of
its ask (`services.asks`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kvcluster.driver.protocol import Fence
from kvcluster.ids import GrantId
from kvcluster.services.ask_checks import check, check_room, check_written
from kvcluster.services.asks import (
    Ask,
    AskGrant,
    End,
    Outcome,
    Publish,
    Seal,
    Shed,
    TakeSnapshot,
)
from kvcluster.services.departures import Departures, is_over
from kvcluster.services.frames import outcome_of
from kvcluster.services.memory_state import MemoryState
from kvcluster.services.pending import PendingAsks
from kvcluster.services.prefix import Prefix
from kvcluster.services.sequence import Grant, SequenceMemory
from kvcluster.services.snapshots import boundary_of


class Verbs:
    """Of one port, whose `submit` sends a frame. `grants` are numbers that were never used.

    `one` is for those that are one ask, and raises what it is refused with. Each other one raises what `SequenceMemory`
    says of the method of the same name.
    """

    def __init__(
        self, submit: Callable[[Sequence[Ask]], PendingAsks], departures: Departures, grants: Iterator[int]
    ) -> None:
        self._submit = submit
        self._departures = departures
        self._grants = grants

    def one(self, ask: Ask) -> Outcome:
        self._free(ask.memory)
        return outcome_of(self._submit([ask]))

    def grant(self, memory: SequenceMemory, tokens: int) -> Grant:
        check_room(memory, tokens, 1, memory.spec.max_tokens)
        identity = GrantId(memory.request, next(self._grants))
        grant = Grant(identity, max(1, memory.bytes_to_reach(tokens)))
        self.one(AskGrant(memory, grant))
        return grant

    def publish(self, memory: SequenceMemory, tokens: int, *, written: int) -> Prefix:
        self._free(memory)
        check([Publish(memory, tokens)])
        check_written(memory, tokens, written)
        if memory.holdings.shape.has_rings:
            boundary_of(memory, tokens, written)
            self.one(TakeSnapshot(memory, tokens, written))
        self.one(Publish(memory, tokens))
        prefix = self.one(Seal(memory)).prefix
        assert prefix is not None  # or an error was raised
        return prefix

    def release(self, memory: SequenceMemory, *, after: Fence | None) -> None:
        shed = Shed(memory, after)
        self._free(memory)
        if after is None or is_over(after):
            self.one(shed)
            return
        check([shed])
        memory.is_leaving = True
        self._departures.wait(memory, after)

    def close(self, memory: SequenceMemory, *, retain_tokens: int, token_ids: bytes) -> Prefix | None:
        if memory.state is MemoryState.CLOSED:
            memory.range.close()  # does nothing, unless it failed before
            return None
        return self.one(End(memory, retain_tokens, token_ids)).prefix

    def _free(self, memory: SequenceMemory) -> None:
        """Wait for what `tend` has under way for it; what became of that the next `tend` says."""
        if self._departures.is_under_way(memory):
            self._departures.settle()
