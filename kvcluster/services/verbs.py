"""A request's verbs one at a time: each is one ask, or the few that it takes, sent alone and waited for.

This is what `SequenceMemory` calls. An engine that serves many requests sends its asks together, and never waits
(`DevicePort.submit`). What is refused is raised here; an outcome's state is that of its ask (`services.asks`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kvcluster.driver.protocol import Fence
from kvcluster.ids import GrantId
from kvcluster.index.token_chain import packed
from kvcluster.services.ask_checks import check, check_room, check_written
from kvcluster.services.asks import (
    Ask,
    AskGrant,
    End,
    Find,
    Join,
    Leave,
    Outcome,
    Publish,
    ReturnGrant,
    Seal,
    Shed,
    Spend,
    TakeSnapshot,
)
from kvcluster.services.departures import Departures, is_over
from kvcluster.services.memory_state import MemoryState
from kvcluster.services.pending import PendingAsks
from kvcluster.services.prefix import Prefix
from kvcluster.services.sequence import Grant, SequenceMemory
from kvcluster.services.snapshots import boundary_of


class Verbs:
    """Of one port, whose `submit` sends a frame. `grants` are numbers that were never used.

    Each raises what `SequenceMemory` says of the method of the same name.
    """

    def __init__(
        self, submit: Callable[[Sequence[Ask]], PendingAsks], departures: Departures, grants: Iterator[int]
    ) -> None:
        self._submit = submit
        self._departures = departures
        self._grants = grants

    def grant(self, memory: SequenceMemory, tokens: int) -> Grant:
        check_room(memory, tokens, 1, memory.spec.max_tokens)
        identity = GrantId(memory.request, next(self._grants))
        grant = Grant(identity, max(1, memory.bytes_to_reach(tokens)))
        self._one(AskGrant(memory, grant))
        return grant

    def give_back(self, memory: SequenceMemory, grant: Grant) -> None:
        self._one(ReturnGrant(memory, grant))

    def commit(self, memory: SequenceMemory, tokens: int, grant: Grant) -> None:
        self._one(Spend(memory, tokens, grant))

    def publish(self, memory: SequenceMemory, tokens: int, *, written: int) -> Prefix:
        self._free(memory)
        check([Publish(memory, tokens)])
        check_written(memory, tokens, written)
        if memory.holdings.shape.has_rings:
            boundary_of(memory, tokens, written)
            self._one(TakeSnapshot(memory, tokens, written))
        self._one(Publish(memory, tokens))
        prefix = self._one(Seal(memory)).prefix
        assert prefix is not None  # or an error was raised
        return prefix

    def find(self, memory: SequenceMemory, token_ids: Sequence[int], tokens: int) -> int:
        self._one(Find(memory, packed(token_ids), tokens))
        return memory.joined_tokens

    def join(self, memory: SequenceMemory, prefix: Prefix, tokens: int) -> int:
        self._one(Join(memory, prefix, tokens))
        return memory.joined_tokens

    def leave(self, memory: SequenceMemory) -> None:
        self._one(Leave(memory))

    def release(self, memory: SequenceMemory, *, after: Fence | None) -> None:
        shed = Shed(memory, after)
        self._free(memory)
        if after is None or is_over(after):
            self._one(shed)
            return
        check([shed])
        memory.is_leaving = True
        self._departures.wait(memory, after)

    def close(self, memory: SequenceMemory, *, retain_tokens: int, token_ids: bytes) -> Prefix | None:
        if memory.state is MemoryState.CLOSED:
            memory.range.close()  # does nothing, unless it failed before
            return None
        return self._one(End(memory, retain_tokens, token_ids)).prefix

    def _free(self, memory: SequenceMemory) -> None:
        """Wait for what `tend` has under way for it; what became of that the next `tend` says."""
        if self._departures.is_under_way(memory):
            self._departures.settle()

    def _one(self, ask: Ask) -> Outcome:
        self._free(ask.memory)
        [outcome] = self._submit([ask]).settle()
        if outcome.error:
            raise outcome.error
        return outcome
