"""The user's side of a reservation: one range of address, and what is mapped in it.

The address is reserved once and never moves; windows are mapped and unmapped in it at step boundaries. Which
bytes these are, and who pays for them, is the owner's business (`kvcluster.memory`). Handles are borrowed: they
are mapped here, and neither created nor released. Each verb is one operation: a graph is captured before or after it.

What could not be unmapped stays recorded as mapped, and the range takes no more windows. Nothing is freed on hope
and nothing is touched when the object dies: a range that is not closed lasts as long as its process.
Source: "Virtual Memory for KV Cache", case one.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NoReturn

from kvcluster.driver.gate import operation
from kvcluster.driver.protocol import Access, Driver, Fence, PhysicalHandle
from kvcluster.errors import DriverError, InvariantBroken, NotAllowed, Quarantined, Residue
from kvcluster.failpoints import Failpoint, reach
from kvcluster.geometry.residency import RangeMap
from kvcluster.ids import WindowRun
from kvcluster.mapping.placement import Placement, Placements, Span
from kvcluster.transaction import Progress, Transaction
from kvcluster.units import format_bytes


class LeakedOnPurpose(RuntimeWarning):
    """Memory was left mapped until the process ends, because it may still be in use.

    No ResourceWarning: Python does not show those unless it is asked to.
    """


class RangeState(Enum):
    OPEN = "open"
    QUARANTINED = "quarantined"  # something is mapped that should not be: no more windows
    CLOSED = "closed"


TRANSITIONS: dict[RangeState, frozenset[RangeState]] = {
    RangeState.OPEN: frozenset({RangeState.QUARANTINED, RangeState.CLOSED}),
    RangeState.QUARANTINED: frozenset({RangeState.QUARANTINED, RangeState.CLOSED}),
    RangeState.CLOSED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class Unmapped:
    """`done` is unmapped; `still` is mapped, because of `error` (the first one), or of work that is not done.

    A window of a ring whose second copy failed is still mapped, at one address, and may be unmapped again.
    """

    done: tuple[WindowRun, ...]
    still: tuple[WindowRun, ...]
    error: DriverError | None


def open_range(driver: Driver, range_map: RangeMap) -> AddressRange:
    """Reserve the address of `range_map`, with nothing mapped in it.

    Raises:
        ValueError: the map's granule is no multiple of the driver's. Nothing changed.
        LimitReached, DriverError: as `Driver.reserve`. Nothing changed.
    """
    return open_ranges(driver, range_map, 1)[0]


def open_ranges(driver: Driver, range_map: RangeMap, count: int) -> tuple[AddressRange, ...]:
    """`count` equal ranges, one behind the other in one reservation, which goes back with the last that is closed.

    Raises:
        ValueError: no range, or as `open_range`. Nothing changed.
        LimitReached, DriverError: as `Driver.reserve`. Nothing changed.
    """
    granule_bytes = range_map.shape.granule_bytes
    if granule_bytes % driver.granularity_bytes:
        raise ValueError(f"a granule of {granule_bytes} bytes is no multiple of {driver.granularity_bytes}")
    if count < 1:
        raise ValueError(f"at least 1 range is opened, not {count}")
    size_bytes = range_map.size_bytes
    ground = _Ground(driver, driver.reserve(count * size_bytes), count * size_bytes, count)
    return tuple(AddressRange(driver, range_map, ground.address + i * size_bytes, ground) for i in range(count))


class _Ground:
    """One reservation of the driver's, which takes back the whole of it and no part."""

    def __init__(self, driver: Driver, address: int, size_bytes: int, ranges: int) -> None:
        self.address = address
        self._driver = driver
        self._size_bytes = size_bytes
        self._ranges = ranges

    def leave(self) -> None:
        """One range less, in which nothing is mapped. Raises DriverError where the last cannot go; it may try again."""
        if self._ranges == 1:
            self._driver.free_address(self.address, self._size_bytes)
        self._ranges -= 1


class AddressRange:
    """One range of reserved address and what is mapped in it. For one thread at a time."""

    def __init__(self, driver: Driver, range_map: RangeMap, address: int, ground: _Ground) -> None:
        self.address = address
        self.range_map = range_map
        self._driver = driver
        self._ground = ground
        self._placements = Placements(address, range_map)
        self._state = RangeState.OPEN

    @property
    def state(self) -> RangeState:
        return self._state

    @property
    def mapped_bytes(self) -> int:
        """A window counts once, at however many addresses it is mapped."""
        return self._placements.mapped_bytes

    def mapped_runs(self) -> tuple[WindowRun, ...]:
        """What is mapped, in window order, in as few runs as possible."""
        return self._placements.mapped_runs()

    def mapped_behind(self, windows: Sequence[int]) -> tuple[WindowRun, ...]:
        """What is mapped behind the first `windows` of each fragment, a group at a time; whole handles alone."""
        return self._placements.mapped_behind(windows)

    @operation
    def map_runs(
        self, runs: Sequence[WindowRun], handles: Sequence[PhysicalHandle], *, access: Access = Access.READ_WRITE
    ) -> None:
        """Map `handles` into the windows of `runs`, in order, with `access`: all of them or none.

        A handle covers as many adjacent windows of one run as it has granules, and is mapped at each of its addresses.

        Raises:
            ValueError: runs overlap, leave the range, are mapped already, or are not filled exactly by the
                handles. No driver call was made.
            NotAllowed: the range is closed or quarantined. No driver call was made.
            LimitReached, DriverError: a call failed and every earlier one was undone, or a graph is being captured.
                Nothing changed.
            Quarantined: a call failed and so did an undo. What is still mapped stays in `mapped_runs`; the range
                takes no more windows.
        """
        if self._state is not RangeState.OPEN:
            raise NotAllowed(reason=f"the address range is {self._state.value} and takes no more windows")
        spans = [span for placement in self._placements.plan(runs, handles) for span in placement.spans]
        with Transaction() as transaction:
            done = transaction.doing("map windows", 0, undo=lambda done: self._take_back(runs, spans, done.count))
            for span in spans:
                self._map(span, access, done)
            transaction.keep()
        for span in spans:
            self._placements.record(span)

    @operation
    def unmap_runs(self, runs: Sequence[WindowRun], *, after: Fence | None = None) -> Unmapped:
        """Unmap whole runs once the work that may use them is done; the address stays reserved.

        That is all of the driver's work, which is waited for, or what `after` stands for, which is not: while it is
        under way all is `still` mapped without an `error`, nothing was called, and one asks again later.

        A run whose call fails stays mapped and the others still go; if the work cannot be confirmed as done, all
        stay mapped. Both quarantine the range.

        Raises:
            DriverError: a graph is being captured. Nothing changed.
            ValueError: runs overlap, leave the range, or are not filled by whole handles. No driver call was made.
            NotAllowed: the range is closed. No driver call was made.
        """
        if self._state is RangeState.CLOSED:
            raise NotAllowed(reason="the address range is closed")
        placements = self._placements.find(runs)
        if not placements:
            return Unmapped((), (), None)
        try:
            if not self._work_is_done(after):
                return Unmapped((), tuple(runs), None)
        except DriverError as error:
            self._move_to(RangeState.QUARANTINED)
            return Unmapped((), tuple(runs), error)
        return self._unmap_each(placements)

    @operation
    def close(self, *, after: Fence | None = None) -> None:
        """Unmap everything and give the address back. Once it is closed, another close does nothing.

        What is mapped is unmapped once the work that may use it is done, as in `unmap_runs`.

        Raises:
            NotAllowed: the work of `after` is under way. Nothing changed.
            Quarantined: it could not be confirmed that the driver's work is done: everything is left mapped until
                the process ends, one `LeakedOnPurpose` says how much, and the range is closed (all of it also where
                warnings are errors: then the sentence is a note of this). Or an unmap failed:
                what is still mapped stays in `mapped_runs`, and close may be tried again.
            DriverError: nothing is mapped and the address was not given back, or a graph is being captured and
                nothing changed; close may be tried again.
        """
        if self._state is RangeState.CLOSED:
            return
        self._end_work(after)
        unmapped = self._unmap_each(self._placements.find(self.mapped_runs()))
        if unmapped.still:
            raise Quarantined(residue=self._residue(unmapped.still)) from unmapped.error
        self._ground.leave()
        self._move_to(RangeState.CLOSED)

    def _map(self, span: Span, access: Access, done: Progress) -> None:
        self._driver.map(span.address, span.handles, done)
        reach(Failpoint.CLIENT_MAPPED)
        self._driver.set_access(span.address, span.size_bytes, access)
        reach(Failpoint.CLIENT_ACCESSIBLE)

    def _take_back(self, runs: Sequence[WindowRun], spans: Sequence[Span], count: int) -> None:
        """Unmap the first `count` handles of `spans`, the newest span first; a failing one does not stop the others."""
        failure = None
        for span, mapped in reversed(_begun(spans, count)):
            try:
                self._driver.unmap(span.address, sum(handle.size_bytes for handle in span.handles[:mapped]))
            except DriverError as error:
                self._placements.record(span, mapped)
                self._move_to(RangeState.QUARANTINED)
                failure = error
        if failure:
            raise Quarantined(residue=self._residue(self._placements.mapped_within(runs))) from failure

    def _unmap_each(self, placements: Sequence[Placement]) -> Unmapped:
        """One call a span; a failing one does not stop the others."""
        done: list[WindowRun] = []
        still: list[WindowRun] = []
        errors: list[DriverError] = []
        for placement in placements:
            failures = [error for span in placement.spans if (error := self._unmap(span))]
            errors += failures
            (still if failures else done).append(placement.run)
        return Unmapped(tuple(done), tuple(still), errors[0] if errors else None)

    def _unmap(self, span: Span) -> DriverError | None:
        try:
            self._driver.unmap(span.address, span.size_bytes)
        except DriverError as error:
            self._move_to(RangeState.QUARANTINED)
            return error
        self._placements.strike(span)
        return None

    def _work_is_done(self, after: Fence | None) -> bool:
        if after is not None:
            return after.done()
        self._driver.synchronize()
        return True

    def _end_work(self, after: Fence | None) -> None:
        if not self.mapped_bytes:
            return  # nothing that any work could use
        try:
            if not self._work_is_done(after):
                raise NotAllowed(reason="work that may use the address range is under way")
        except DriverError as error:
            self._leak(error)

    def _leak(self, error: DriverError) -> NoReturn:
        self._move_to(RangeState.CLOSED)
        quarantined = Quarantined(residue=self._residue(self.mapped_runs()))
        try:
            warnings.warn(
                f"{format_bytes(self.mapped_bytes)} ({self.mapped_bytes} bytes) stay mapped at {self.address:#x} until "
                f"the process ends: {error}",
                LeakedOnPurpose,
                stacklevel=3,
            )
        except LeakedOnPurpose as warning:  # an error where warnings are; the caller needs the other one
            quarantined.add_note(str(warning))
        raise quarantined from error

    def _residue(self, runs: Sequence[WindowRun]) -> tuple[Residue, ...]:
        granule_bytes = self.range_map.shape.granule_bytes
        return tuple(Residue(f"{run} of the range at {self.address:#x}", run.count * granule_bytes) for run in runs)

    def _move_to(self, state: RangeState) -> None:
        if state not in TRANSITIONS[self._state]:
            raise InvariantBroken(sentence=f"an address range does not go from {self._state.value} to {state.value}")
        self._state = state


def _begun(spans: Sequence[Span], count: int) -> list[tuple[Span, int]]:
    """The spans in which the first `count` handles lie, with how many of them each has."""
    begun = []
    for span in spans:
        mapped = min(count, len(span.handles))
        if mapped:
            begun.append((span, mapped))
        count -= mapped
    return begun
