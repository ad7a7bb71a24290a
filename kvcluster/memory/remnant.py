"""What a request still had when its client's connection ended: its windows, and the prefixes that it used.

The owner's side of what a successor may go on with. A remnant is only a note: whose bytes these are, and whether
anybody may have them, is decided elsewhere (`services.keeping`).
"""

from __future__ import annotations

from dataclasses import dataclass

from kvcluster.geometry.residency import Keeps, RangeMap
from kvcluster.ids import RequestId, WindowRun
from kvcluster.memory.handle import Handle, bytes_of
from kvcluster.memory.reservation import Reservation, ReservationState, Use
from kvcluster.memory.shared_prefix import Part


@dataclass(frozen=True, slots=True, eq=False)
class Remnant:
    """`windows` are there, from each fragment's first on; `runs` are its own, and `handles` theirs in this order."""

    request: RequestId
    range_map: RangeMap
    tenant: str
    cache_root: bytes
    token_ids: bytes
    arrival: int
    windows: tuple[int, ...]
    runs: tuple[WindowRun, ...]
    handles: tuple[Handle, ...]
    uses: tuple[Use, ...]

    @property
    def size_bytes(self) -> int:
        """Of its own windows."""
        return bytes_of(self.handles)

    @property
    def shared(self) -> Part | None:
        """What of the prefixes it reads: all but their snapshots, which it has read when it began."""
        if not self.uses:
            return None
        newest, groups = self.uses[-1], self.range_map.shape.groups
        windows = tuple(
            0 if group.keeps is Keeps.SNAPSHOT else count for group, count in zip(groups, newest.windows, strict=True)
        )
        return newest.prefix.part(windows)

    def holds(self, tokens: int) -> bool:
        """Whether every window of the first `tokens` tokens is there."""
        if tokens > self.range_map.max_tokens:
            return False
        wanted = self.range_map.shape.windows(tokens)
        return all(need <= there for need, there in zip(wanted, self.windows, strict=True))

    def fits(self, reservation: Reservation) -> bool:
        """Whether that request could go on with it: the same shape at the same addresses, for the same tenant."""
        mine = (self.range_map, self.tenant, self.cache_root)
        return mine == (reservation.range_map, reservation.tenant, reservation.cache_root)


def remnant_of(reservation: Reservation) -> Remnant | None:
    """What is left of the request now; None where its windows are not all of one piece and known: it is quarantined, is
    about to seal some of them, or has memory of an earlier incarnation."""
    is_sound = reservation.state in (ReservationState.COMMITTED, ReservationState.SHARED)
    if not is_sound or reservation.writing is not None or reservation.is_foreign:
        return None
    runs = reservation.own.held_runs()
    return Remnant(
        request=reservation.request,
        range_map=reservation.range_map,
        tenant=reservation.tenant,
        cache_root=reservation.cache_root,
        token_ids=reservation.token_ids,
        arrival=reservation.arrival,
        windows=reservation.windows,
        runs=runs,
        handles=tuple(reservation.own.backing(runs)),
        uses=reservation.uses,
    )
