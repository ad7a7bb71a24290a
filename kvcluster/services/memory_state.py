"""What a request's memory is to its owner, as the process that computes knows it; for a device's and for host pages."""

from __future__ import annotations

from kvcluster.states import State


class MemoryState(State):
    NEW = "new"  # here alone; the owner has not heard of it
    OPEN = "open"
    CLOSED = "closed"


MEMORY_MOVES: dict[MemoryState, frozenset[MemoryState]] = {
    MemoryState.NEW: frozenset({MemoryState.OPEN, MemoryState.CLOSED}),
    MemoryState.OPEN: frozenset({MemoryState.CLOSED}),
    MemoryState.CLOSED: frozenset(),
}
