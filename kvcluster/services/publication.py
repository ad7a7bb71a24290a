"""The asks that share the beginning of one request's tokens on a device, in their order; each is a frame of its own.

Arithmetic and what this process knows, so that a prompt that is too short to share costs no message. Where there are
rings the window before the boundary is copied out of them first.
"""

from __future__ import annotations

from kvcluster.errors import NotShareable
from kvcluster.geometry.residency import Keeps
from kvcluster.geometry.shareability import shareability_of
from kvcluster.services.asks import Ask, Publish, Seal, TakeSnapshot
from kvcluster.services.sequence import SequenceMemory
from kvcluster.services.snapshots import boundary_of


def publication(memory: SequenceMemory, tokens: int, written: int) -> tuple[Ask, ...]:
    """Asks that share the first `tokens` tokens, of which `written` are computed; none where that shares no more."""
    shape = memory.holdings.shape
    if shareability_of(shape, tokens).refusal is not None:
        return ()
    shared = shape.shared_windows(tokens)
    if not any(
        new > old
        for group, new, old in zip(shape.groups, shared, memory.sealed or (0,) * len(shared), strict=True)
        if group.keeps is Keeps.EVERY
    ):
        return ()
    if memory.range.range_map.most_bytes + shape.snapshot_bytes > memory.most_bytes:
        return ()  # shared, it would not fit any more
    if not shape.has_rings:
        return (Publish(memory, tokens), Seal(memory))
    try:
        boundary_of(memory, tokens, written)
    except NotShareable:
        return ()
    return (TakeSnapshot(memory, tokens, written), Publish(memory, tokens), Seal(memory))
