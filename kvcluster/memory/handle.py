"""A physical handle and the five states that it can be in.

The handle is the unit that moves: created by the device, lent to one request at a time, pooled between two of
them. `identity` has a number that is used again and a generation that never is, so that a ticket, or a client's
memory of it, cannot mean a later life of the same handle.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from kvcluster.driver.protocol import PhysicalHandle
from kvcluster.ids import HandleId
from kvcluster.states import moved


class HandleState(Enum):
    POOLED = "pooled"  # no client has it
    OUT = "out"  # a request has it, and may write
    QUARANTINED = "quarantined"  # may still be mapped somewhere, or could not be released: charged, not reused
    GONE = "gone"  # released to the driver


HANDLE_MOVES: dict[HandleState, frozenset[HandleState]] = {
    HandleState.POOLED: frozenset({HandleState.OUT, HandleState.QUARANTINED, HandleState.GONE}),
    HandleState.OUT: frozenset({HandleState.POOLED, HandleState.QUARANTINED}),
    HandleState.QUARANTINED: frozenset({HandleState.POOLED}),
    HandleState.GONE: frozenset(),
}


@dataclass(slots=True, eq=False)
class Handle:
    """`seq` is the frame whose ticket hands it over, while it is out."""

    identity: HandleId
    physical: PhysicalHandle
    state: HandleState = HandleState.POOLED
    seq: int = 0

    @property
    def size_bytes(self) -> int:
        return self.physical.size_bytes

    def move(self, to: HandleState) -> None:
        """Raises InvariantBroken where `HANDLE_MOVES` does not have it."""
        self.state = moved(self.state, to, HANDLE_MOVES)
