"""The owner's side of one request: which windows of its address have memory, and which handle each has.

The device knows a request as a shape (fragments and strides) and a most number of tokens; where its addresses lie
is the client's business. Planning is pure: `missing` names the windows that so many tokens need and that are not
there. A window is its own (paid by this request), or shared (below the end of a prefix that it uses, and nobody's
bill but the prefix's), or foreign: mapped by its client since an earlier incarnation of the device, own or shared
then, and without a handle here. Bytes are charged elsewhere (budget/); handles come from the pool, and one may cover
several adjacent windows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvcluster.errors import NotAllowed
from kvcluster.geometry.residency import Keeps, RangeMap
from kvcluster.geometry.windows import Window, runs_of
from kvcluster.ids import RequestId, WindowRun
from kvcluster.memory.foreign_windows import ForeignWindows
from kvcluster.memory.handle import Handle
from kvcluster.memory.handle_sizes import HandleSizes
from kvcluster.memory.own_windows import OwnWindows
from kvcluster.memory.shared_prefix import SharedPrefix
from kvcluster.states import State, moved


class ReservationState(State):
    RESERVED = "reserved"  # an address, no bytes
    COMMITTED = "committed"  # some windows have memory, all its own
    SHARED = "shared"  # some windows are a prefix's
    QUARANTINED = "quarantined"  # some windows could not be taken back: no more commits
    CLOSED = "closed"


_OPEN = frozenset({ReservationState.RESERVED, ReservationState.COMMITTED, ReservationState.SHARED})
_ENDS = frozenset({ReservationState.QUARANTINED, ReservationState.CLOSED})
RESERVATION_MOVES: dict[ReservationState, frozenset[ReservationState]] = {
    **{state: (_OPEN - {state}) | _ENDS for state in ReservationState if state in _OPEN},
    ReservationState.QUARANTINED: frozenset({ReservationState.CLOSED}),
    ReservationState.CLOSED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class Terms:
    """How a request was opened: for whom, with handles of which sizes, and its place in the device's queue.

    Under `cache_root` its tokens are found; empty: they are not.
    """

    sizes: HandleSizes
    arrival: int
    tenant: str = ""
    cache_root: bytes = b""


@dataclass(frozen=True, slots=True)
class Use:
    """A prefix that a request uses, and how many of its windows."""

    prefix: SharedPrefix
    windows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OldUse:
    """A prefix of an earlier incarnation that a request reads: the epoch that made it, its number then, the windows of
    it that the request has, and up to which window of each fragment it reads old prefixes with it.
    """

    epoch: int
    number: int
    runs: tuple[WindowRun, ...]
    windows: tuple[int, ...]

    @property
    def key(self) -> tuple[int, int]:
        return self.epoch, self.number


class Reservation:
    """One request's windows: its `own`, and those that it `uses` of prefixes, newest last. `writing` is the prefix that
    it is about to seal, `token_ids` are those of its tokens that are known here. `foreign` and `old_uses` are what its
    client had mapped when this incarnation began."""

    def __init__(self, request: RequestId, range_map: RangeMap, terms: Terms) -> None:
        self.request = request
        self.range_map = range_map
        self.arrival = terms.arrival
        self.tenant = terms.tenant
        self.cache_root = terms.cache_root
        self.token_ids = b""
        self.sizes = terms.sizes
        self.state = ReservationState.RESERVED
        self.uses: tuple[Use, ...] = ()
        self.old_uses: tuple[OldUse, ...] = ()
        self.writing: SharedPrefix | None = None
        self.own = OwnWindows(request, range_map.shape)
        self.foreign = ForeignWindows(request)
        self._filled = dict.fromkeys(self.own.places(), 0)  # up to where they are there, shared ones included

    @property
    def own_bytes(self) -> int:
        """Bytes of the windows that are its own."""
        return self.own.count * self.range_map.shape.granule_bytes

    @property
    def foreign_bytes(self) -> int:
        """Bytes of those that were its own in an earlier incarnation."""
        return self.foreign.count * self.range_map.shape.granule_bytes

    @property
    def held_bytes(self) -> int:
        """Both: what its end would free of its own."""
        return self.own_bytes + self.foreign_bytes

    @property
    def is_foreign(self) -> bool:
        """Whether something of it has no handle here, so that nothing of it can be shared."""
        return bool(self.foreign.count or self.old_uses)

    @property
    def shares(self) -> bool:
        """Whether it uses a prefix."""
        return bool(self.uses or self.old_uses)

    @property
    def freed_bytes(self) -> int:
        """What its end would free: its own windows, and prefixes that nobody else uses."""
        newest = self.writing or (self.uses[-1].prefix if self.uses else None)
        prefixes = newest.only_for(self.request) if newest else ()
        return self.held_bytes + sum(prefix.size_bytes for prefix in prefixes)

    @property
    def reserved_bytes(self) -> int:
        """Address for the most tokens; no memory."""
        return self.range_map.size_bytes

    @property
    def shared(self) -> tuple[int, ...]:
        """Windows of each fragment that are a prefix's."""
        if self.uses:
            return self.uses[-1].windows
        return self.old_uses[-1].windows if self.old_uses else (0,) * len(self.range_map.shape.groups)

    @property
    def windows(self) -> tuple[int, ...]:
        """Windows of each group that all its fragments have, from the first on: its own and shared ones."""
        groups = range(len(self.range_map.shape.groups))
        return tuple(min(count for place, count in self._filled.items() if place[0] == group) for group in groups)

    def growth_bytes(self, tokens: int) -> int:
        """The most that `tokens` more tokens can take: nothing where no more can be committed."""
        if self.state is ReservationState.QUARANTINED:
            return 0
        shape = self.range_map.shape
        left = self.range_map.most_bytes - self.held_bytes - shape.granule_bytes * shape.window_count(self._below())
        return max(0, min(shape.committed_bytes(tokens), left))

    def missing(self, tokens: int, *, snapshot: bool = False) -> tuple[WindowRun, ...]:
        """The windows that the first `tokens` tokens need and that are not there, in window order.

        With `snapshot`, also all windows of its snapshots that are not its own.

        Raises:
            NotAllowed: more tokens than were reserved, or the reservation is quarantined. Nothing changed.
        """
        if tokens > self.range_map.max_tokens:
            raise NotAllowed(reason=f"{tokens} tokens are more than the {self.range_map.max_tokens} reserved")
        self._check_sound()
        shape = self.range_map.shape
        wanted = shape.windows(tokens)
        if snapshot:
            wanted = shape.with_snapshots(wanted)
        return tuple(run for place in self._filled for run in self._missing_of(*place, wanted[place[0]]))

    def attach(self, runs: Sequence[WindowRun], handles: Sequence[Handle]) -> None:
        """The windows of `runs` have these handles now: see `OwnWindows.attach`."""
        self.own.attach(runs, handles)
        for run in runs:
            self._extend(run.group, run.fragment)
        self._settle()

    def detach(self, runs: Sequence[WindowRun]) -> list[Handle]:
        """Take the windows of `runs` out; returns their handles in window order. Raises as `OwnWindows.detach`."""
        handles, below = self.own.detach(runs), self._below()
        for run in runs:
            place = (run.group, run.fragment)
            self._filled[place] = min(self._filled[place], max(run.start, below[run.group]))
        self._settle()
        return handles

    def hold_foreign(self, runs: Sequence[WindowRun]) -> None:
        """Its client has these mapped, its own then. Raises as `ForeignWindows.add`."""
        self.foreign.add(runs)
        self._refill()

    def drop_foreign(self, runs: Sequence[WindowRun]) -> None:
        """These are unmapped: they are nobody's."""
        self.foreign.remove(runs)
        self._refill()

    def use_old(self, uses: tuple[OldUse, ...]) -> None:
        """It reads these prefixes of an earlier incarnation, newest last, and no others of that kind."""
        self.old_uses = uses
        self._refill()

    def use(self, prefix: SharedPrefix, windows: tuple[int, ...]) -> None:
        """The first `windows` of each fragment are the prefix's from now on."""
        self.uses = (*self.uses, Use(prefix, windows))
        self._refill()

    def part(self) -> Use:
        """Use the newest prefix no longer; its windows are nobody's here."""
        *older, newest = self.uses
        self.uses = tuple(older)
        self._refill()
        return newest

    def quarantine(self) -> None:
        """Windows of it could not be taken back: no more commits."""
        self._move(ReservationState.QUARANTINED)

    def close(self) -> None:
        """The end; what it held was detached before."""
        self._move(ReservationState.CLOSED)

    def _check_sound(self) -> None:
        if self.state is ReservationState.QUARANTINED:
            raise NotAllowed(reason=f"request {self.request} is quarantined and takes no more commits")

    def _below(self) -> tuple[int, ...]:
        """Where its own windows begin: a snapshot that it shares is for reading out of, and no part of it."""
        groups = self.range_map.shape.groups
        return tuple(0 if g.keeps is Keeps.SNAPSHOT else count for g, count in zip(groups, self.shared, strict=True))

    def _missing_of(self, group: int, fragment: int, wanted: int) -> Iterator[WindowRun]:
        filled, own = self._filled[group, fragment], self.own.numbers(group, fragment)
        foreign = self.foreign.numbers(group, fragment)
        if wanted <= filled:
            return
        if len(own) + len(foreign) == filled - self._below()[group]:  # nothing lies beyond a hole
            yield WindowRun(group, fragment, filled, wanted - filled)
        else:
            there = own.keys() | foreign
            yield from runs_of(Window(group, fragment, n) for n in range(filled, wanted) if n not in there)

    def _extend(self, group: int, fragment: int) -> None:
        filled, own = self._filled[group, fragment], self.own.numbers(group, fragment)
        foreign = self.foreign.numbers(group, fragment)
        while filled in own or filled in foreign:
            filled += 1
        self._filled[group, fragment] = filled

    def _refill(self) -> None:
        below = self._below()
        for group, fragment in self._filled:
            self._filled[group, fragment] = below[group]
            self._extend(group, fragment)
        self._settle()

    def _settle(self) -> None:
        if self.state is ReservationState.QUARANTINED:
            return
        if self.shares:
            self._move(ReservationState.SHARED)
        else:
            self._move(ReservationState.COMMITTED if self.held_bytes else ReservationState.RESERVED)

    def _move(self, to: ReservationState) -> None:
        if to is not self.state:
            self.state = moved(self.state, to, RESERVATION_MOVES)
