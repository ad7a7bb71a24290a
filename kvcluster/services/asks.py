"""What a client asks of its device, one value a request, and how each becomes operations and an outcome.

    Grow        more windows: a grant and its commit in one group (and `open` first, where the request is new)
    AskGrant, Spend, ReturnGrant    the same, a verb at a time
    Shed        every window back; the request stays open and keeps its arrival number
    End         every window back, and the end of the request

The client's half of Shed and End is done before the frame is made: what the device hears is what has happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvcluster.errors import KvClusterError, NotAllowed
from kvcluster.ids import WindowRun
from kvcluster.services.sequence import Grant, MemoryState, SequenceMemory, TakenBack
from kvcluster.wire import messages as wire

MOST_ASKS = 1024  # in one frame, which takes 4,096 operations
MOST_RUNS = 65_536  # of windows, in one frame or reply: 2.3 MiB of its 4 MiB


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
    if len(asks) > MOST_ASKS or sum(memory.fragments for memory in memories) > MOST_RUNS:
        raise ValueError(f"a frame carries at most {MOST_ASKS} asks and {MOST_RUNS} fragments: use several")
    for ask in asks:
        if isinstance(ask, Grow | Spend) and not 1 <= ask.tokens <= ask.memory.spec.max_tokens:
            raise ValueError(
                f"{ask.memory.request} has room for 1 to {ask.memory.spec.max_tokens}, not {ask.tokens} tokens"
            )


def request_key(memory: SequenceMemory) -> wire.RequestKey:
    return wire.RequestKey(number=memory.request.number, generation=memory.request.generation)


def wire_runs(runs: Sequence[WindowRun]) -> tuple[wire.Run, ...]:
    return tuple(wire.Run(group=r.group, fragment=r.fragment, start=r.start, count=r.count) for r in runs)


def window_runs(runs: Sequence[wire.Run]) -> tuple[WindowRun, ...]:
    return tuple(WindowRun(r.group, r.fragment, r.start, r.count) for r in runs)


def open_operation(memory: SequenceMemory) -> tuple[wire.Operation, ...]:
    """`open`, where the device has not heard of the request."""
    if memory.state is not MemoryState.NEW:
        return ()
    shape = memory.range.range_map.shape
    groups = tuple(wire.Group(fragments=g.fragments, stride_bytes=g.stride_bytes) for g in shape.groups)
    return (wire.Open(request=request_key(memory), groups=groups, max_tokens=memory.spec.max_tokens),)


def commit_operation(memory: SequenceMemory, tokens: int, grant: int) -> wire.Operation:
    return wire.Commit(request=request_key(memory), grant=grant, tokens=tokens)


def grow_operations(memory: SequenceMemory, tokens: int, grant: int) -> tuple[wire.Operation, ...]:
    """`grant` and `commit` for what is missing; nothing, where nothing is."""
    size_bytes = memory.bytes_to_reach(tokens)
    if not size_bytes:
        return ()
    return (*grant_operations(memory, grant, size_bytes), commit_operation(memory, tokens, grant))


def grant_operations(memory: SequenceMemory, grant: int, size_bytes: int) -> tuple[wire.Operation, ...]:
    asked = wire.Grant(request=request_key(memory), grant=grant, size_bytes=size_bytes)
    return (*open_operation(memory), asked)


def release_operations(memory: SequenceMemory, taken_back: TakenBack) -> tuple[wire.Operation, ...]:
    """`release` for what was unmapped, and for what could not be."""
    key, operations = request_key(memory), []
    if taken_back.done:
        operations.append(wire.Release(request=key, runs=wire_runs(taken_back.done), outcome="clean"))
    if taken_back.still:
        operations.append(wire.Release(request=key, runs=wire_runs(taken_back.still), outcome="quarantined"))
    return tuple(operations)
