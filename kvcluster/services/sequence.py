"""The memory of one request, in the process that computes: an address that never moves, and what backs it.

This is what a user holds. It has the verbs one at a time (`grant`, `commit`, `release`, `close`); an engine that
serves many requests sends them together through `services.port.DevicePort.submit`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Self

from kvcluster.errors import KvClusterError, Quarantined, Residue
from kvcluster.geometry.layout import Layout
from kvcluster.geometry.model import KvGeometry
from kvcluster.geometry.windows import Window, runs_of, windows_of
from kvcluster.ids import GrantId, RequestId, WindowRun
from kvcluster.mapping.address_range import AddressRange
from kvcluster.states import moved

if TYPE_CHECKING:
    import torch

    from kvcluster.services.port import DevicePort
    from kvcluster.tensors.views import KvViews


@dataclass(frozen=True, slots=True)
class SequenceSpec:
    """What is kept a token, how it lies, and for how many tokens an address is reserved.

    `after` is an earlier request of the same port, ended by now, whose place in the device's queue this one takes.
    """

    geometry: KvGeometry
    layout: Layout
    max_tokens: int
    after: RequestId | None = None


@dataclass(frozen=True, slots=True)
class Grant:
    """Budget that the device holds for a request, for a few seconds."""

    identity: GrantId
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TakenBack:
    """What the client's half of giving windows back came to, in windows that the device still counts as the request's.

    `done` is unmapped; `still` is mapped, because of `error`.
    """

    done: tuple[WindowRun, ...]
    still: tuple[WindowRun, ...]
    error: KvClusterError | None = None


class MemoryState(Enum):
    NEW = "new"  # an address in this process; the device has not heard of it
    OPEN = "open"
    CLOSED = "closed"


MEMORY_MOVES: dict[MemoryState, frozenset[MemoryState]] = {
    MemoryState.NEW: frozenset({MemoryState.OPEN, MemoryState.CLOSED}),
    MemoryState.OPEN: frozenset({MemoryState.CLOSED}),
    MemoryState.CLOSED: frozenset(),
}


class SequenceMemory:
    """One request's memory. Made by `DevicePort.memory` or `LocalDevice.open`; used by one thread at a time."""

    def __init__(self, port: DevicePort, request: RequestId, spec: SequenceSpec, address_range: AddressRange) -> None:
        self.request = request
        self.spec = spec
        self.arrival: int | None = None
        self.state = MemoryState.NEW
        self.in_flight = False
        self._port = port
        self._range = address_range
        self._windows = address_range.range_map.shape.windows(0)
        self._estranged: set[Window] = set()  # still mapped, and the device has been told so

    @property
    def address(self) -> int:
        """Where the range begins; the same from `open` to `close`."""
        return self._range.address

    @property
    def tokens(self) -> int:
        """The most tokens that the committed windows hold."""
        return min(self._range.range_map.shape.tokens_in(self._windows), self.spec.max_tokens)

    @property
    def committed_bytes(self) -> int:
        return self._range.mapped_bytes

    @property
    def reserved_bytes(self) -> int:
        return self._range.range_map.size_bytes

    @property
    def fragments(self) -> int:
        """Pieces of address that grow together."""
        return sum(group.fragments for group in self._range.range_map.shape.groups)

    @property
    def returnable_runs(self) -> int:
        """How many runs of windows a release of everything names: each is unmapped whole, or stays whole."""
        mapped = self._range.mapped_runs()
        return len(runs_of(set(windows_of(mapped)) - self._estranged)) if self._estranged else len(mapped)

    @property
    def windows(self) -> tuple[int, ...]:
        """Committed windows of each fragment, a group at a time."""
        return self._windows

    def bytes_to_reach(self, tokens: int) -> int:
        """What a grant must hold so that a commit of `tokens` tokens can be paid."""
        shape = self._range.range_map.shape
        more = tuple(max(0, b - a) for a, b in zip(self._windows, shape.windows(tokens), strict=True))
        return shape.granule_bytes * shape.window_count(more)

    def grant(self, tokens: int) -> Grant:
        """Ask for the budget that `tokens` tokens need beyond what is committed.

        Raises:
            OutOfBudget: not now. Nothing changed; the request keeps its place in the queue.
            NeverFits: the whole reservation is larger than the device. Nothing changed.
        """
        return self._port.grant(self, tokens)

    def give_back(self, grant: Grant) -> None:
        """Return a grant that will not be spent. Raises GrantRefused where it is not held."""
        self._port.give_back(self, grant)

    def commit(self, tokens: int, grant: Grant) -> None:
        """Back the first `tokens` tokens with physical memory; the address does not move.

        Maps whole granules. `grant` is spent for what was mapped; the rest of it goes back.

        Raises:
            GrantRefused: no grant, no commit: no driver call was made. Nothing changed.
            ValueError: no tokens, or more than the most. Nothing changed.
            DriverError, LimitReached: a call failed and every earlier one was undone. On the device's half the grant
                is held again; on this process's half the windows were given back and the grant stays spent.
            Quarantined: a call failed and so did an undo; those bytes stay charged. Where a window of this memory is
                still mapped (`committed_bytes` counts it), the memory takes no more commits.

        Source: "Virtual Memory for KV Cache", case one.
        """
        self._port.commit(self, tokens, grant)

    def release(self) -> None:
        """Give every window back; the address stays and the next commit uses it again.

        Raises:
            Quarantined: some windows could not be unmapped. They stay charged until this process is gone.
        """
        self._port.release(self)

    def close(self) -> None:
        """Release, end the request, and free the address. Closing again tries again what could not be freed here.

        Raises:
            Quarantined: it cannot be confirmed that nothing uses the memory: it is leaked on purpose, with one warning.
                Or a window could not be unmapped. Either way its bytes stay charged until this process is gone.
            DriverError: the address could not be freed; nothing is mapped in it.
        """
        self._port.close_memory(self)

    def views(self, dtype: torch.dtype) -> KvViews:
        """K and V of every layer over the committed tokens, in place; see `tensors.views.kv_views`."""
        from kvcluster.tensors.views import kv_views

        spec = self.spec
        return kv_views(
            self.address, self._range.range_map, spec.geometry, spec.layout, tokens=self.tokens, dtype=dtype
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- for the port: the client's half of each verb -------------------------------------------------------------

    def opened(self, arrival: int) -> None:
        self.state = moved(self.state, MemoryState.OPEN, MEMORY_MOVES)
        self.arrival = arrival

    def mapped(self, tokens: int) -> None:
        """The windows of `tokens` tokens are mapped now."""
        shape = self._range.range_map.shape
        self._windows = tuple(max(a, b) for a, b in zip(self._windows, shape.windows(tokens), strict=True))

    def shed(self) -> TakenBack:
        """Take every mapping out of the range; what could not be taken is said in the result."""
        unmapped = self._range.unmap_runs(self._range.mapped_runs())
        self._windows = self._range.range_map.shape.windows(0)
        error = None
        if unmapped.still:
            error = Quarantined(residue=self._residue(unmapped.still))
            error.__cause__ = unmapped.error
        return self._taken_back(set(windows_of(unmapped.done)), set(windows_of(unmapped.still)), error)

    def end(self) -> TakenBack:
        """Take every mapping out and free the address; the memory is closed, whatever came of it."""
        self.state = moved(self.state, MemoryState.CLOSED, MEMORY_MOVES)
        self._windows = self._range.range_map.shape.windows(0)
        before, error = set(windows_of(self._range.mapped_runs())), None
        try:
            self._range.close()
        except KvClusterError as failure:
            error = failure
        still = set(windows_of(self._range.mapped_runs()))
        return self._taken_back(before - still, still, error)

    def not_mapped(self, runs: tuple[WindowRun, ...]) -> TakenBack:
        """A commit of `runs` failed here: which of them are not mapped, and which could not be taken back."""
        wanted = set(windows_of(runs))
        still = wanted & set(windows_of(self._range.mapped_runs()))
        return self._taken_back(wanted - still, still, None)

    def _taken_back(self, done: set[Window], still: set[Window], error: KvClusterError | None) -> TakenBack:
        known = self._estranged
        self._estranged = known | still
        return TakenBack(runs_of(done - known), runs_of(still - known), error)

    def _residue(self, runs: tuple[WindowRun, ...]) -> tuple[Residue, ...]:
        granule_bytes = self._range.range_map.shape.granule_bytes
        return tuple(Residue(f"{run} of request {self.request}", run.count * granule_bytes) for run in runs)

    @property
    def range(self) -> AddressRange:
        return self._range
