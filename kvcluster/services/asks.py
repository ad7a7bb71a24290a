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

from kvcluster.errors import KvClusterError
from kvcluster.ids import WindowRun
from kvcluster.mapping.address_range import Unmapped
from kvcluster.services.sequence import Grant, MemoryState, SequenceMemory
from kvcluster.wire import messages as wire


@dataclass(frozen=True, slots=True)
class Grow:
    """Windows for the first `tokens` tokens, paid by a new grant numbered `grant`."""

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


def release_operations(memory: SequenceMemory, unmapped: Unmapped) -> tuple[wire.Operation, ...]:
    """`release` for what was unmapped, and for what could not be."""
    key = request_key(memory)
    done = (wire.Release(request=key, runs=wire_runs(unmapped.done), outcome="clean"),) if unmapped.done else ()
    still = (
        (wire.Release(request=key, runs=wire_runs(unmapped.still), outcome="quarantined"),) if unmapped.still else ()
    )
    return (*done, *still)
