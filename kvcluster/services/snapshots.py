"""The window before a boundary, between the rings of one request and the snapshot that it publishes or has joined.

A ring is overwritten as its sequence goes on, so it cannot be shared: what is shared is a copy of the W tokens before
the boundary. How rows are copied is in `tensors.snapshots`; here is when. Without rings nothing here does anything,
and torch is not imported.
"""

from __future__ import annotations

from kvcluster.errors import NotShareable
from kvcluster.geometry.shareability import Refusal, shareability_of
from kvcluster.services.sequence import SequenceMemory


def boundary_of(memory: SequenceMemory, tokens: int, written: int) -> int:
    """Where the snapshot of a prefix of `tokens` tokens ends, when `written` tokens were computed.

    Raises:
        NotShareable: by the arithmetic, or the window before it was overwritten already.
    """
    from kvcluster.tensors.snapshots import snapshot_is_possible

    shape, range_map = memory.holdings.shape, memory.range.range_map
    found = shareability_of(shape, tokens)
    if found.refusal is not None:
        raise NotShareable(kind=found.refusal, reason=found.refusal_reason or "")
    boundary = shape.reusable_tokens(shape.shared_windows(tokens), tokens)
    if not snapshot_is_possible(range_map, memory.spec.geometry, tokens=boundary, written=written):
        reason = f"with {written} tokens written the rings do not hold the window before token {boundary}"
        raise NotShareable(kind=Refusal.NO_BOUNDARY, reason=reason)
    return boundary


def take_snapshot(memory: SequenceMemory, tokens: int, written: int) -> None:
    """Copy the window out of the rings; the snapshot's windows are mapped for writing. Raises as `boundary_of`."""
    from kvcluster.tensors.memory import CPU
    from kvcluster.tensors.snapshots import copy_to_snapshot

    boundary = boundary_of(memory, tokens, written)
    geometry, device = memory.spec.geometry, memory.computes_on or CPU
    copy_to_snapshot(memory.address, memory.range.range_map, geometry, tokens=boundary, written=written, device=device)


def fill_rings(memory: SequenceMemory) -> None:
    """Copy a joined window into the rings, if they hold it by now and lack it still."""
    if not memory.lacks_window or memory.tokens < memory.joined_tokens:
        return
    from kvcluster.tensors.memory import CPU
    from kvcluster.tensors.snapshots import copy_from_snapshot

    memory.lacks_window = False
    geometry, device = memory.spec.geometry, memory.computes_on or CPU
    copy_from_snapshot(memory.address, memory.range.range_map, geometry, tokens=memory.joined_tokens, device=device)
