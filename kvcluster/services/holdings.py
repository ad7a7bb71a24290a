"""What one request has mapped in this process, and whose it is: its own windows, and those of prefixes it uses.

The client's half of each verb, without a message: what is mapped, what is unmapped, and what the device must be told
of either (`TakenBack`). Whatever could not be unmapped stays mapped and known; the device hears of it once. Each is
part of the port's operation, so that no capture begins in its middle.

    own        the request pays for them; mapped for reading and writing, or for reading where a seal was refused
    shared     a prefix's; mapped for reading
    residue    still mapped, and given back to the device as "may still be mapped": it does not count them as the
               request's any more
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvcluster.driver.protocol import Access, Fence, PhysicalHandle
from kvcluster.errors import KvClusterError, Quarantined, Residue
from kvcluster.geometry.residency import Keeps, RangeMap, Shape
from kvcluster.geometry.windows import Window, runs_of, windows_of
from kvcluster.ids import RequestId, WindowRun
from kvcluster.mapping.address_range import AddressRange, RangeState, Unmapped
from kvcluster.services.prefix import LeftPrefix, Publication, Used
from kvcluster.services.taken_back import TakenBack, Windows, behind
from kvcluster.services.usable import UsableWindows


class Holdings:
    """`usable` are those from each fragment's first on, and how many of them are mapped for reading."""

    def __init__(self, request: RequestId, address_range: AddressRange) -> None:
        self.range = address_range
        self.usable = UsableWindows(self.shape)
        self.publication: Publication | None = None
        self.is_foreign = False  # something was mapped when the device was restarted, and nothing was released since
        self._request = request
        self._uses: list[Used] = []
        self._residue: set[Window] = set()
        self._residue_shared: set[Window] = set()  # those of the residue that were a prefix's

    @property
    def range_map(self) -> RangeMap:
        return self.range.range_map

    @property
    def shape(self) -> Shape:
        return self.range.range_map.shape

    @property
    def tokens(self) -> int:
        """The most tokens that the usable windows hold."""
        return min(self.usable.tokens, self.range_map.max_tokens)

    @property
    def shared_bytes(self) -> int:
        """Bytes that are mapped here and are a prefix's."""
        shared = sum(run.count for use in self._uses for run in use.runs) + len(self._residue_shared)
        return shared * self.shape.granule_bytes

    @property
    def own_bytes(self) -> int:
        """Bytes that are mapped here and are not a prefix's."""
        return self.range.mapped_bytes - self.shared_bytes

    @property
    def prefix_count(self) -> int:
        """How many prefixes are used."""
        return len(self._uses)

    @property
    def takes_windows(self) -> bool:
        """Whether more can be mapped: nothing is torn, and nothing is mapped that should not be."""
        return not self.usable.is_torn and self.range.state is RangeState.OPEN

    @property
    def returnable_runs(self) -> int:
        """How many runs of windows a release of everything names at most."""
        mapped = self.range.mapped_runs()
        if not self._uses and not self._residue:
            return len(mapped)
        return len(runs_of(set(windows_of(mapped)) - self._residue - self._shared()))

    def missing_bytes(self, wanted: Windows, *, beside: Windows | None = None) -> int:
        """What a grant must hold so that `wanted` windows are there; `beside` come with a prefix that is joined."""
        have = self.usable.windows if beside is None else beside
        more = tuple(max(0, b - a) for a, b in zip(have, wanted, strict=True))
        return self.shape.granule_bytes * self.shape.window_count(more)

    def date_prefixes(self, epoch: int) -> None:
        """Those that have no date yet were made by the incarnation of `epoch`, which is dead."""
        uses = [use if use.epoch is not None else replace(use, epoch=epoch) for use in self._uses]
        self._uses = [use for use in uses if use.runs]

    def old_prefixes(self) -> tuple[Used, ...]:
        """What it reads of prefixes, oldest first, for a device that was restarted."""
        return tuple(self._uses)

    def old_runs(self) -> tuple[WindowRun, ...]:
        """Everything else that is mapped, for a device that was restarted: all of it is foreign from then on."""
        self.is_foreign = self.range.mapped_bytes > 0
        mapped = self.range.mapped_runs()
        return runs_of(set(windows_of(mapped)) - self._shared()) if self._uses else mapped

    # --- more -----------------------------------------------------------------------------------------------------

    def map_own(self, runs: Sequence[WindowRun], handles: Sequence[PhysicalHandle], wanted: Windows) -> None:
        """Map a commit's windows; `wanted` are there now. Raises as `AddressRange.map_runs`."""
        self.range.map_runs(runs, handles)
        self.usable.grow(wanted)

    def map_joined(self, number: int, runs: tuple[WindowRun, ...], handles: Sequence[PhysicalHandle]) -> None:
        """Map a prefix's windows for reading. Raises as `AddressRange.map_runs`."""
        self.range.map_runs(runs, handles, access=Access.READ)
        self._uses.append(Used(number, runs))
        self.usable.seal(runs)

    def map_adopted(
        self, numbers: Sequence[int], runs: tuple[WindowRun, ...], handles: Sequence[PhysicalHandle]
    ) -> None:
        """The same for prefixes that build on one another, oldest first: all their windows count as the newest's."""
        self.map_joined(numbers[-1], runs, handles)
        self._uses[:0] = [Used(number, ()) for number in numbers[:-1]]

    def hold_published(self, handles: Sequence[PhysicalHandle]) -> None:
        """What is to be published lies in these."""
        self.publication = replace(self._planned(), handles=tuple(handles))

    def map_published(self, handles: Sequence[PhysicalHandle], *, is_shared: bool) -> None:
        """Map what was unmapped for the seal again, for reading. Raises as `AddressRange.map_runs`."""
        plan = self._planned()
        self.range.map_runs(plan.runs, handles, access=Access.READ)
        self.publication = None
        self.usable.seal(plan.runs)
        if is_shared:
            self._uses.append(Used(plan.number, plan.runs))

    # --- less -----------------------------------------------------------------------------------------------------

    def trim(self, tokens: int) -> TakenBack:
        """Take out what lies behind the first `tokens` tokens: see `services.asks.Trim`."""
        needed = self.shape.with_snapshots(self.shape.windows(tokens))
        kept = tuple(map(max, needed, self.usable.sealed))
        runs = runs_of(set(windows_of(self.range.mapped_behind(kept))) - self._residue)
        unmapped = self.range.unmap_runs(runs)
        self._residue |= set(windows_of(unmapped.still))
        ends = list(self.usable.windows)
        for run in runs:
            ends[run.group] = min(ends[run.group], run.start)
        self.usable.cut(tuple(ends))
        return TakenBack(unmapped.done, unmapped.still, error=self._quarantined(unmapped))

    def shed(self, *, after: Fence | None = None) -> TakenBack:
        """Take every mapping out of the range; what could not be taken is said in the result.

        `after` has ended, or cannot tell.
        """
        unmapped = self.range.unmap_runs(self.range.mapped_runs(), after=after)
        taken_back = self._taken_back(unmapped.done, unmapped.still, self._quarantined(unmapped))
        self._empty()
        return taken_back

    def end(self) -> TakenBack:
        """Take every mapping out and free the address, whatever comes of it."""
        before, error = self.range.mapped_runs(), None
        try:
            self.range.close()
        except KvClusterError as failure:
            error = failure
        still = self.range.mapped_runs()
        done = runs_of(set(windows_of(before)) - set(windows_of(still))) if still else before
        taken_back = self._taken_back(done, still, error)
        self._empty()
        return taken_back

    def leave(self) -> TakenBack:
        """Unmap what is shared, and use no prefix any more. What lies behind it is of no use until a release."""
        runs = [run for use in self._uses for run in use.runs]
        unmapped = self.range.unmap_runs(runs)
        taken_back = self._taken_back((), unmapped.still, self._quarantined(unmapped))
        if self.own_bytes:
            self.usable.tear(runs)
        else:
            self._empty()
        return taken_back

    def unmap_published(self) -> TakenBack:
        """Unmap what is to be sealed. Where one of its windows stays mapped, the plan is given up.

        Then what was unmapped is given back, and the rest stays mapped and the request's.
        """
        plan = self._planned()
        unmapped = self.range.unmap_runs(plan.runs)
        if not unmapped.still:
            return TakenBack()
        self.publication = None
        self.usable.tear(unmapped.done)
        left = () if unmapped.done else (LeftPrefix(plan.number, is_clean=True),)
        return TakenBack(done=unmapped.done, left=left, error=self._quarantined(unmapped))

    def unmap_snapshot(self) -> KvClusterError | None:
        """Unmap the snapshot of a prefix that is used, so that the request can have one of its own.

        Returns why that cannot be; then nothing more can be mapped here.
        """
        runs = [run for use in self._uses for run in use.runs if self._is_snapshot(run)]
        if not runs:
            return None
        unmapped = self.range.unmap_runs(runs)
        gone = set(unmapped.done)
        self._uses = [replace(use, runs=tuple(run for run in use.runs if run not in gone)) for use in self._uses]
        self.usable.drop_snapshots()
        return self._quarantined(unmapped)

    # --- a map that failed ----------------------------------------------------------------------------------------

    def not_mapped(self, runs: Sequence[WindowRun]) -> TakenBack:
        """A commit of `runs` failed here: which of them are not mapped, and which could not be taken back."""
        wanted = set(windows_of(runs))
        still = wanted & set(windows_of(self.range.mapped_runs()))
        known, self._residue = self._residue, self._residue | still
        return TakenBack(runs_of(wanted - still - known), runs_of(still - known))

    def not_joined(self, number: int, runs: Sequence[WindowRun]) -> TakenBack:
        """Prefix `number` could not be mapped: it is left."""
        still = set(windows_of(runs)) & set(windows_of(self.range.mapped_runs()))
        self._residue |= still
        self._residue_shared |= still
        return TakenBack(left=(LeftPrefix(number, is_clean=not still),))

    def not_adopted(self, numbers: Sequence[int], runs: Sequence[WindowRun]) -> TakenBack:
        """Prefixes of an adoption could not be mapped: all are left. The others live as long as the newest does."""
        newest = self.not_joined(numbers[-1], runs)
        others = tuple(LeftPrefix(number, is_clean=True) for number in reversed(numbers[:-1]))
        return replace(newest, left=(*newest.left, *others))

    def not_published(self, *, is_shared: bool) -> TakenBack:
        """What was unmapped for the seal could not be mapped again: it is left, or given back. A hole stays."""
        plan = self._planned()
        self.publication = None
        self.usable.tear(plan.runs)
        return self.not_joined(plan.number, plan.runs) if is_shared else self.not_mapped(plan.runs)

    # --- parts ----------------------------------------------------------------------------------------------------

    def _taken_back(
        self, done: tuple[WindowRun, ...], still: tuple[WindowRun, ...], error: KvClusterError | None
    ) -> TakenBack:
        """What to tell the device; from now on no prefix is used."""
        if not self._residue and not still:  # as ever: no window is looked at by itself
            own_runs, left = tuple(behind(done, self._shared_ends())), self._left_clean()
            self._uses.clear()
            return TakenBack(own_runs, left=left, error=error)
        shared, known = self._shared(), self._residue
        gone, left_here = set(windows_of(done)), set(windows_of(still))
        left = tuple(
            LeftPrefix(use.number, is_clean=left_here.isdisjoint(windows_of(use.runs))) for use in reversed(self._uses)
        )
        self._uses.clear()
        self._residue = (known - gone) | left_here
        self._residue_shared = (self._residue_shared - gone) | (shared & left_here)
        own = shared | known
        return TakenBack(runs_of(gone - own), runs_of(left_here - own), left, error)

    def _left_clean(self) -> tuple[LeftPrefix, ...]:
        return tuple(LeftPrefix(use.number, is_clean=True) for use in reversed(self._uses))

    def _shared_ends(self) -> Windows:
        """Where the windows of the prefixes end in each fragment: they are its first ones."""
        ends = [0] * len(self.shape.groups)
        for use in self._uses:
            for run in use.runs:
                ends[run.group] = max(ends[run.group], run.start + run.count)
        return tuple(ends)

    def _shared(self) -> set[Window]:
        return {window for use in self._uses for window in windows_of(use.runs)}

    def _planned(self) -> Publication:
        assert self.publication is not None  # asked for before
        return self.publication

    def _empty(self) -> None:
        self.usable.empty()
        self.publication, self.is_foreign = None, False

    def _is_snapshot(self, run: WindowRun) -> bool:
        return self.shape.groups[run.group].keeps is Keeps.SNAPSHOT

    def _quarantined(self, unmapped: Unmapped) -> Quarantined | None:
        if not unmapped.still:
            return None
        granule_bytes = self.shape.granule_bytes
        error = Quarantined(
            residue=tuple(
                Residue(f"{run} of request {self._request}", run.count * granule_bytes) for run in unmapped.still
            )
        )
        error.__cause__ = unmapped.error
        return error
