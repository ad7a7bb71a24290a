"""Asks as operations of a frame, and windows as they travel. Pure: nothing here changes a memory."""

from __future__ import annotations

from collections.abc import Sequence

from kvcluster.ids import RequestId, WindowRun
from kvcluster.services.sequence import MemoryState, SequenceMemory, TakenBack
from kvcluster.wire import messages as wire


def key_of(request: RequestId) -> wire.RequestKey:
    """The request within its session."""
    return wire.RequestKey(number=request.number, generation=request.generation)


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
    after = key_of(memory.spec.after) if memory.spec.after else None
    return (wire.Open(request=key_of(memory.request), groups=groups, max_tokens=memory.spec.max_tokens, after=after),)


def commit_operation(memory: SequenceMemory, tokens: int, grant: int) -> wire.Operation:
    return wire.Commit(request=key_of(memory.request), grant=grant, tokens=tokens)


def grow_operations(memory: SequenceMemory, tokens: int, grant: int) -> tuple[wire.Operation, ...]:
    """`grant` and `commit` for what is missing; nothing, where nothing is."""
    size_bytes = memory.bytes_to_reach(tokens)
    if not size_bytes:
        return ()
    return (*grant_operations(memory, grant, size_bytes), commit_operation(memory, tokens, grant))


def grant_operations(memory: SequenceMemory, grant: int, size_bytes: int) -> tuple[wire.Operation, ...]:
    asked = wire.Grant(request=key_of(memory.request), grant=grant, size_bytes=size_bytes)
    return (*open_operation(memory), asked)


def release_operations(memory: SequenceMemory, taken_back: TakenBack) -> tuple[wire.Operation, ...]:
    """`release` for what was unmapped, and for what could not be."""
    key, operations = key_of(memory.request), []
    if taken_back.done:
        operations.append(wire.Release(request=key, runs=wire_runs(taken_back.done), outcome="clean"))
    if taken_back.still:
        operations.append(wire.Release(request=key, runs=wire_runs(taken_back.still), outcome="quarantined"))
    return tuple(operations)
