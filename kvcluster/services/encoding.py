"""Asks as operations of a frame, and windows as they travel. Pure: nothing here changes a memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kvcluster.geometry.residency import GroupShape
from kvcluster.ids import RequestId, WindowRun
from kvcluster.services.asks import Adopt, Ask, AskGrant, Find, Grow, Join, Publish, ReturnGrant, Spend
from kvcluster.services.memory_state import MemoryState
from kvcluster.services.prefix import Prefix
from kvcluster.services.sequence import SequenceMemory
from kvcluster.services.taken_back import TakenBack, Windows, behind
from kvcluster.wire import messages as wire

if TYPE_CHECKING:
    from kvcluster.services.pages.sequence import SequencePages


def key_of(request: RequestId) -> wire.RequestKey:
    """The request within its session."""
    return wire.RequestKey(number=request.number, generation=request.generation)


def wire_runs(runs: Sequence[WindowRun]) -> tuple[wire.Run, ...]:
    return tuple(wire.Run(group=r.group, fragment=r.fragment, start=r.start, count=r.count) for r in runs)


def window_runs(runs: Sequence[wire.Run]) -> tuple[WindowRun, ...]:
    return tuple(WindowRun(r.group, r.fragment, r.start, r.count) for r in runs)


def open_operation(memory: SequenceMemory) -> tuple[wire.Operation, ...]:
    """`open`, where the device has not heard of the request."""
    return (_opening(memory),) if memory.state is MemoryState.NEW else ()


def _opening(memory: SequenceMemory) -> wire.Open:
    spec = memory.spec
    return wire.Open(
        request=key_of(memory.request),
        groups=tuple(_wire_group(group) for group in memory.holdings.shape.groups),
        max_tokens=spec.max_tokens,
        after=key_of(spec.after) if spec.after else None,
        tenant=spec.tenant,
        shareable_tokens=spec.shareable_tokens,
        cache_root=spec.cache_root,
    )


def _wire_group(group: GroupShape) -> wire.Group:
    return wire.Group(
        fragments=group.fragments, stride_bytes=group.stride_bytes, keeps=group.keeps.value, windows=group.windows
    )


def operations_of(ask: Ask, grants: Iterator[int]) -> tuple[wire.Operation, ...]:
    """What `ask` asks the device for; `grants` are numbers that were never used. What it gives back is none of it."""
    key = key_of(ask.memory.request)
    match ask:
        case Grow(memory, tokens):
            return grow_operations(memory, tokens, next(grants))
        case Find(memory, token_ids, grow_to):
            return find_operations(memory, token_ids, grow_to, next(grants))
        case Adopt(memory, sessions, label):
            return (*open_operation(memory), wire.Adopt(request=key, sessions=sessions, label=label))
        case Join(memory, prefix, tokens, grow_to):
            return join_operations(memory, prefix, tokens, grow_to=grow_to, grant=next(grants))
        case AskGrant(memory, grant):
            return grant_operations(memory, grant.identity.number, grant.size_bytes)
        case Spend(memory, tokens, grant):
            return (commit_operation(memory, tokens, grant.identity.number),)
        case ReturnGrant(_, grant):
            return (wire.GiveBack(request=key, grant=grant.identity.number),)
        case Publish(_, tokens):
            return (wire.Publish(request=key, tokens=tokens),)
    return ()


def register_operations(memory: SequenceMemory) -> tuple[wire.Operation, ...]:
    """`open` and `register`, for a later incarnation than the one that gave what is mapped."""
    holdings, key = memory.holdings, key_of(memory.request)
    prefixes = tuple(
        wire.OldPrefix(epoch=use.epoch or 0, prefix=use.number, runs=wire_runs(use.runs))
        for use in holdings.old_prefixes()
    )
    arrival, runs = memory.arrival or 0, wire_runs(holdings.old_runs())
    return (_opening(memory), wire.Register(request=key, arrival=arrival, runs=runs, prefixes=prefixes))


def commit_operation(memory: SequenceMemory, tokens: int, grant: int) -> wire.Operation:
    return wire.Commit(request=key_of(memory.request), grant=grant, tokens=tokens)


def grow_operations(memory: SequenceMemory, tokens: int, grant: int) -> tuple[wire.Operation, ...]:
    """`grant` and `commit` for what is missing; nothing, where nothing is."""
    size_bytes = memory.bytes_to_reach(tokens)
    if not size_bytes:
        return ()
    return (*grant_operations(memory, grant, size_bytes), commit_operation(memory, tokens, grant))


def snapshot_operations(memory: SequenceMemory, tokens: int, grant: int) -> tuple[wire.Operation, ...]:
    """The same for the windows of the snapshots."""
    size_bytes = memory.holdings.missing_bytes(snapshot_windows(memory, tokens))
    if not size_bytes:
        return ()
    commit = wire.Commit(request=key_of(memory.request), grant=grant, tokens=tokens, snapshot=True)
    return (*grant_operations(memory, grant, size_bytes), commit)


def snapshot_windows(memory: SequenceMemory, tokens: int) -> Windows:
    shape = memory.holdings.shape
    return shape.with_snapshots(shape.windows(tokens))


def join_operations(
    memory: SequenceMemory, prefix: Prefix, tokens: int, *, grow_to: int | None, grant: int
) -> tuple[wire.Operation, ...]:
    """`join`, and `grant` and `commit` for what is missing beside it: the device knows how much that is."""
    shape, key = memory.holdings.shape, key_of(memory.request)
    operations = (*open_operation(memory), wire.Join(request=key, prefix=prefix.number, tokens=tokens))
    if grow_to is None:
        return operations
    beside = shape.shared_windows(min(tokens, prefix.tokens))
    size_bytes = max(1, memory.holdings.missing_bytes(shape.windows(grow_to), beside=beside))
    asked = wire.Grant(request=key, grant=grant, size_bytes=size_bytes, tokens=grow_to)
    return (*operations, asked, commit_operation(memory, grow_to, grant))


def find_operations(memory: SequenceMemory, token_ids: bytes, grow_to: int, grant: int) -> tuple[wire.Operation, ...]:
    """`find`, and `grant` and `commit` for what is missing beside what it joins."""
    key = key_of(memory.request)
    found = wire.Find(request=key, token_ids=token_ids)
    asked = wire.Grant(request=key, grant=grant, size_bytes=memory.bytes_to_reach(grow_to) or 1, tokens=grow_to)
    return (*open_operation(memory), found, asked, commit_operation(memory, grow_to, grant))


def close_operation(memory: SequenceMemory | SequencePages, retain_tokens: int, token_ids: bytes) -> wire.Operation:
    """`close`, with what its owner lacks of the ids of what is to be retained."""
    key = key_of(memory.request)
    if not retain_tokens:
        return wire.Close(request=key)
    more, told_tokens = memory.told.unsaid(token_ids), memory.told.tokens
    return wire.Close(request=key, retain_tokens=retain_tokens, token_ids=more, told_tokens=told_tokens)


def grant_operations(memory: SequenceMemory, grant: int, size_bytes: int) -> tuple[wire.Operation, ...]:
    asked = wire.Grant(request=key_of(memory.request), grant=grant, size_bytes=size_bytes)
    return (*open_operation(memory), asked)


def release_operations(memory: SequenceMemory, taken_back: TakenBack) -> tuple[wire.Operation, ...]:
    """`release` for what was unmapped, and for what could not be; `leave` for the prefixes."""
    key = key_of(memory.request)
    operations: list[wire.Operation] = []
    if taken_back.done:
        operations.append(wire.Release(request=key, runs=wire_runs(taken_back.done), outcome="clean"))
    if taken_back.still:
        operations.append(wire.Release(request=key, runs=wire_runs(taken_back.still), outcome="quarantined"))
    for left in taken_back.left:
        outcome = "clean" if left.is_clean else "quarantined"
        operations.append(wire.Leave.model_validate({"request": key, "prefix": left.number, "outcome": outcome}))
    return tuple(operations)


def but_retained(taken_back: TakenBack, kept: Windows) -> TakenBack:
    """The same without the first `kept` windows of each fragment, which the device is to retain."""
    return replace(taken_back, done=tuple(behind(taken_back.done, kept)))
