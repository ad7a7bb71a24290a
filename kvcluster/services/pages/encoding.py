"""What an ask says to host pages, as operations of a frame. Pure: nothing here changes a sequence."""

from __future__ import annotations

from collections.abc import Iterator

from kvcluster.errors import KvClusterError
from kvcluster.geometry.layout import Layout, group_layouts
from kvcluster.services.asks import End, Find, Grow, Publish, Shed
from kvcluster.services.encoding import close_operation, key_of
from kvcluster.services.memory_state import MemoryState
from kvcluster.services.pages.asks import Fork, PageAsk, Permute
from kvcluster.services.pages.sequence import SequencePages
from kvcluster.wire import messages as wire

Operations = tuple[wire.Operation, ...]


def operations_of(
    ask: PageAsk, error: KvClusterError | None, grants: Iterator[int], *, granule_bytes: int
) -> Operations:
    """What is said for it, where `error` says what this process could not do; `grants` were never used."""
    key = key_of(ask.memory.request)
    match ask:
        case Grow(memory, tokens):
            return (*_opening(memory), *_paid(key, tokens, next(grants), granule_bytes))
        case Find(memory, token_ids, tokens):
            found = wire.Find(request=key, token_ids=token_ids)
            return (*_opening(memory), found, *_paid(key, tokens, next(grants), granule_bytes))
        case Shed(memory) if memory.state is MemoryState.OPEN:
            return (drop_operation(memory, error),)
        case End(memory, retain_tokens, token_ids) if memory.state is MemoryState.OPEN:
            if error:
                return (drop_operation(memory, error), wire.Close(request=key))
            return (close_operation(memory, retain_tokens, token_ids),)
        case Publish(memory, tokens) if not error:
            return (wire.Share(request=key, tokens=tokens, told_tokens=memory.told.tokens),)
        case Fork(_, children, tokens) if not error:
            keys = tuple(key_of(child.request) for child in children)
            return (wire.Fork(request=key, children=keys, tokens=tokens),)
        case Permute(_, members, parents, tokens) if not error:
            keys = tuple(key_of(member.request) for member in members)
            return (wire.Permute(request=key, members=keys, parents=parents, tokens=tokens),)
    return ()


def drop_operation(memory: SequencePages, error: KvClusterError | None) -> wire.Operation:
    """All of it is given back; with an error this process may still write there."""
    return wire.Drop(request=key_of(memory.request), outcome="quarantined" if error else "clean")


def _paid(key: wire.RequestKey, tokens: int, grant: int, granule_bytes: int) -> Operations:
    asked = wire.Grant(request=key, grant=grant, size_bytes=granule_bytes, tokens=tokens)
    return (asked, wire.Commit(request=key, grant=grant, tokens=tokens))


def _opening(memory: SequencePages) -> Operations:
    if memory.state is not MemoryState.NEW:
        return ()
    spec = memory.spec
    token_bytes = sum(layout.stride_bytes for layout in group_layouts(spec.geometry, Layout.TOKEN_MAJOR))
    opened = wire.Open(
        request=key_of(memory.request),
        groups=(wire.Group(fragments=1, stride_bytes=token_bytes),),
        max_tokens=spec.max_tokens,
        after=key_of(spec.after) if spec.after else None,
        tenant=spec.tenant,
        cache_root=spec.cache_root,
    )
    return (opened,)
