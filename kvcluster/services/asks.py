"""What a client asks of its device, one value a request, and which asks may share a frame.

    Grow        more windows: a grant and its commit in one group (and `open` first, where the request is new)
    AskGrant, Spend, ReturnGrant    the same, a verb at a time
    Shed        every window back; the request stays open and keeps its arrival number
    End         every window back, and the end of the request

The client's half of Shed and End is done before the frame is made: what the device hears is what has happened. How
asks become operations is in `services.encoding`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvcluster.errors import KvClusterError, NotAllowed
from kvcluster.services.sequence import Grant, MemoryState, SequenceMemory

MOST_ASKS = 1024  # in one frame, which takes 4,096 operations
MOST_RUNS = 32_768  # of windows, in one frame or reply: at most 1.5 of its 4 MiB, so that 4,095 refusals fit beside


@dataclass(frozen=True, slots=True)
class Grow:
    """Windows for the first `tokens` tokens, paid by a new grant. Says nothing to the device where all are there."""

    memory: SequenceMemory
    tokens: int


@dataclass(frozen=True, slots=True)
class AskGrant:
    memory: SequenceMemory
    grant: Grant


@dataclass(frozen=True, slots=True)
class Spend:
    memory: SequenceMemory
    tokens: int
    grant: Grant


@dataclass(frozen=True, slots=True)
class ReturnGrant:
    memory: SequenceMemory
    grant: Grant


@dataclass(frozen=True, slots=True)
class Shed:
    memory: SequenceMemory


@dataclass(frozen=True, slots=True)
class End:
    memory: SequenceMemory


Ask = Grow | AskGrant | Spend | ReturnGrant | Shed | End


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an ask: done, or the refusal or failure with the state that its docstring gives."""

    ask: Ask
    error: KvClusterError | None = None


def check(asks: Sequence[Ask]) -> None:
    """`asks` can be sent together.

    Raises:
        NotAllowed: a memory is closed, or has an ask in flight already.
        ValueError: no tokens, more than a memory's most, or more than a frame carries.
    """
    memories = [ask.memory for ask in asks]
    if len(set(memories)) != len(memories) or any(memory.in_flight for memory in memories):
        raise NotAllowed(reason="a request may have one ask in flight: settle it first")
    if any(memory.state is MemoryState.CLOSED for memory in memories):
        raise NotAllowed(reason="the memory is closed")
    if len(asks) > MOST_ASKS or sum(runs_of_ask(ask) for ask in asks) > MOST_RUNS:
        raise ValueError(f"a frame carries at most {MOST_ASKS} asks and {MOST_RUNS} runs of windows: use several")
    for ask in asks:
        if isinstance(ask, Grow | Spend) and not 1 <= ask.tokens <= ask.memory.spec.max_tokens:
            raise ValueError(
                f"{ask.memory.request} has room for 1 to {ask.memory.spec.max_tokens}, not {ask.tokens} tokens"
            )


def runs_of_ask(ask: Ask) -> int:
    """The most runs of windows that the frame, or its reply, names for this ask."""
    return ask.memory.returnable_runs if isinstance(ask, Shed | End) else ask.memory.fragments
