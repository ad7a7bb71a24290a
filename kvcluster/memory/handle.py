"""A physical handle and the five states that it can be in.

The handle is the unit that moves: created by the device, lent to one request at a time, pooled between two of them,
or sealed and shared by many until it is destroyed. `identity` has a number that is used again and a generation that
changes when the number gets new physical memory, and only then: what a client imported by it stays good.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter

from kvcluster.driver.protocol import PhysicalHandle
from kvcluster.ids import HandleId
from kvcluster.states import State, moved


class HandleState(State):
    POOLED = "pooled"  # no client has it
    OUT = "out"  # a request has it, and may write
    SHARED = "shared"  # a sealed prefix has it, and nobody may write
    QUARANTINED = "quarantined"  # may still be mapped somewhere, or could not be released: charged, not reused
    GONE = "gone"  # released to the driver


HANDLE_MOVES: dict[HandleState, frozenset[HandleState]] = {
    HandleState.POOLED: frozenset({HandleState.OUT, HandleState.QUARANTINED, HandleState.GONE}),
    HandleState.OUT: frozenset(
        {HandleState.POOLED, HandleState.SHARED, HandleState.QUARANTINED, HandleState.GONE}  # gone: a refused seal's
    ),
    HandleState.SHARED: frozenset({HandleState.QUARANTINED, HandleState.GONE}),
    HandleState.QUARANTINED: frozenset(
        {HandleState.POOLED, HandleState.OUT, HandleState.GONE}  # out: its process is dead, and a successor may come
    ),
    HandleState.GONE: frozenset(),
}


@dataclass(slots=True, eq=False)
class Handle:
    """`tenant` is whose bytes may be in it (None: nobody's); while it is charged, also who pays.

    `was_handed_over`: a descriptor of it was once sent to another process, which may have it mapped for as long as
    it lives. `is_sealed`: it is never written again.
    """

    identity: HandleId
    physical: PhysicalHandle
    state: HandleState = HandleState.POOLED
    tenant: str | None = None
    was_handed_over: bool = False
    is_sealed: bool = False
    size_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.size_bytes = self.physical.size_bytes

    @property
    def payer(self) -> str:
        """The tenant that pays for it, or would if it were lost; what is nobody's is the nameless tenant's."""
        return self.tenant or ""

    def move(self, to: HandleState) -> None:
        """Raises InvariantBroken where `HANDLE_MOVES` does not have it."""
        self.state = moved(self.state, to, HANDLE_MOVES)


def move_all(handles: Iterable[Handle], to: HandleState) -> dict[HandleState, int]:
    """Move each; returns how many bytes came from which state. The table is asked once for a row of equal states.

    Raises:
        InvariantBroken: one may not, or is named twice. Those before it are moved.
    """
    came: dict[HandleState, int] = {}
    for state, row in groupby(handles, attrgetter("state")):
        moved(state, to, HANDLE_MOVES)
        size_bytes = 0
        for handle in row:
            handle.state = to
            size_bytes += handle.size_bytes
        came[state] = came.get(state, 0) + size_bytes
    return came


def bytes_of(handles: Iterable[Handle]) -> int:
    """What they hold together."""
    return sum([handle.size_bytes for handle in handles])


def bytes_by_tenant(handles: Iterable[Handle]) -> dict[str, int]:
    """What they hold, by the tenant that pays."""
    sums: dict[str, int] = {}
    for handle in handles:
        sums[handle.payer] = sums.get(handle.payer, 0) + handle.size_bytes
    return sums
