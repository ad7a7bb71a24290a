"""The owner's side of one request: which windows of its address have memory, and which handle each has.

The device knows a request as a shape (fragments and strides) and a most number of tokens; where its addresses lie
is the client's business. Planning is pure: `missing` names the windows that so many tokens need and that are not
there. Bytes are charged elsewhere (budget/); handles come from the pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from kvcluster.errors import NotAllowed
from kvcluster.geometry.residency import RangeMap
from kvcluster.geometry.windows import Window, runs_of, windows_of
from kvcluster.ids import RequestId, WindowRun
from kvcluster.memory.handle import Handle
from kvcluster.states import moved


class ReservationState(Enum):
    RESERVED = "reserved"  # an address, no bytes
    COMMITTED = "committed"  # some windows have memory
    QUARANTINED = "quarantined"  # some windows could not be taken back: no more commits
    CLOSED = "closed"


RESERVATION_MOVES: dict[ReservationState, frozenset[ReservationState]] = {
    ReservationState.RESERVED: frozenset(
        {ReservationState.COMMITTED, ReservationState.QUARANTINED, ReservationState.CLOSED}
    ),
    ReservationState.COMMITTED: frozenset(
        {ReservationState.RESERVED, ReservationState.QUARANTINED, ReservationState.CLOSED}
    ),
    ReservationState.QUARANTINED: frozenset({ReservationState.CLOSED}),
    ReservationState.CLOSED: frozenset(),
}


class Reservation:
    """One request's windows. `arrival` is its place in the device's queue."""

    def __init__(self, request: RequestId, range_map: RangeMap, arrival: int) -> None:
        self.request = request
        self.range_map = range_map
        self.arrival = arrival
        self.state = ReservationState.RESERVED
        self._handles: dict[Window, Handle] = {}
        self._filled = {(g, f): 0 for g, group in enumerate(range_map.shape.groups) for f in range(group.fragments)}

    @property
    def held_bytes(self) -> int:
        """Bytes of the windows that have memory."""
        return len(self._handles) * self.range_map.shape.granule_bytes

    @property
    def reserved_bytes(self) -> int:
        """Address for the most tokens; no memory."""
        return self.range_map.size_bytes

    def growth_bytes(self, tokens: int) -> int:
        """The most that `tokens` more tokens can take: nothing where no more can be committed."""
        if self.state is ReservationState.QUARANTINED:
            return 0
        return min(self.range_map.shape.committed_bytes(tokens), self.reserved_bytes - self.held_bytes)

    def missing(self, tokens: int) -> tuple[WindowRun, ...]:
        """The windows that the first `tokens` tokens need and that have no memory, in window order.

        Raises:
            NotAllowed: more tokens than were reserved, or the reservation is quarantined. Nothing changed.
        """
        if tokens > self.range_map.max_tokens:
            raise NotAllowed(reason=f"{tokens} tokens are more than the {self.range_map.max_tokens} reserved")
        if self.state is ReservationState.QUARANTINED:
            raise NotAllowed(reason=f"request {self.request} is quarantined and takes no more commits")
        wanted = self.range_map.shape.windows(tokens)
        return runs_of(
            Window(group, fragment, number)
            for (group, fragment), first in self._filled.items()
            for number in range(first, wanted[group])
            if (group, fragment, number) not in self._handles
        )

    def attach(self, runs: Sequence[WindowRun], handles: Sequence[Handle]) -> None:
        """The windows of `runs` have these handles now, one each, in window order."""
        for window, handle in zip(windows_of(runs), handles, strict=True):
            self._handles[window] = handle
        for run in runs:
            self._extend(run.group, run.fragment)
        self._settle()

    def detach(self, runs: Sequence[WindowRun]) -> list[Handle]:
        """Take the windows of `runs` out; returns their handles in window order.

        Raises:
            NotAllowed: a window has no memory, does not exist, or is named twice. Nothing changed.
        """
        windows = self._held(runs)
        handles = [self._handles.pop(window) for window in windows]
        for group, fragment, number in windows:
            self._filled[group, fragment] = min(self._filled[group, fragment], number)
        self._settle()
        return handles

    def held_runs(self) -> tuple[WindowRun, ...]:
        """Every window that has memory."""
        return runs_of(self._handles)

    def quarantine(self) -> None:
        """Windows of it could not be taken back: no more commits."""
        self._move(ReservationState.QUARANTINED)

    def close(self) -> None:
        """The end; what it held was detached before."""
        self._move(ReservationState.CLOSED)

    def _held(self, runs: Sequence[WindowRun]) -> list[Window]:
        named = sum(run.count for run in runs)
        if named > len(self._handles):  # before anything of a run's length is built
            raise NotAllowed(reason=f"request {self.request} holds {len(self._handles)} windows, not {named}")
        windows = list(windows_of(runs))
        unknown = [window for window in windows if window not in self._handles]
        if unknown or len(set(windows)) != len(windows):
            what = f"{unknown[0]}" if unknown else "a window twice"
            raise NotAllowed(reason=f"request {self.request} does not hold {what}")
        return windows

    def _extend(self, group: int, fragment: int) -> None:
        filled = self._filled[group, fragment]
        while (group, fragment, filled) in self._handles:
            filled += 1
        self._filled[group, fragment] = filled

    def _settle(self) -> None:
        if self.state is not ReservationState.QUARANTINED:
            self._move(ReservationState.COMMITTED if self._handles else ReservationState.RESERVED)

    def _move(self, to: ReservationState) -> None:
        if to is not self.state:
            self.state = moved(self.state, to, RESERVATION_MOVES)
