"""Windows that a device's answer names and this process has yet to map, each as the verb that it belongs to wants.

    OwnWindows      of a commit: mapped for reading and writing
    JoinedWindows   of a join: mapped for reading; where that fails the prefix is left again
    AdoptedWindows  of prefixes that came with an adoption: the same for all of them
    SealedWindows   of a seal: mapped for reading where they were before; where that fails the prefix is left, or, if it
                    could not be sealed, they are given back

A piece is mapped whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvcluster.driver.protocol import PhysicalHandle
from kvcluster.failpoints import Failpoint, reach
from kvcluster.ids import WindowRun
from kvcluster.services.asks import Ask, Find, Grow, Join, Spend, TakeSnapshot
from kvcluster.services.encoding import snapshot_windows, window_runs
from kvcluster.services.sequence import SequenceMemory
from kvcluster.services.taken_back import TakenBack, Windows
from kvcluster.wire import messages as wire


@dataclass(frozen=True, slots=True)
class OwnWindows:
    """`wanted` are the windows that are there once these are mapped."""

    memory: SequenceMemory
    runs: tuple[WindowRun, ...]
    wanted: Windows

    def map(self, handles: Sequence[PhysicalHandle]) -> None:
        self.memory.holdings.map_own(self.runs, handles, self.wanted)

    def withdrawn(self) -> TakenBack:
        return self.memory.holdings.not_mapped(self.runs)


@dataclass(frozen=True, slots=True)
class JoinedWindows:
    """`tokens` are there with them."""

    memory: SequenceMemory
    runs: tuple[WindowRun, ...]
    number: int
    tokens: int

    def map(self, handles: Sequence[PhysicalHandle]) -> None:
        self.memory.holdings.map_joined(self.number, self.runs, handles)
        self.memory.joined(self.tokens)

    def withdrawn(self) -> TakenBack:
        return self.memory.holdings.not_joined(self.number, self.runs)


@dataclass(frozen=True, slots=True)
class AdoptedWindows:
    """`numbers`: the prefixes that they are of, oldest first; the newest builds on all others."""

    memory: SequenceMemory
    runs: tuple[WindowRun, ...]
    numbers: tuple[int, ...]

    def map(self, handles: Sequence[PhysicalHandle]) -> None:
        self.memory.holdings.map_adopted(self.numbers, self.runs, handles)

    def withdrawn(self) -> TakenBack:
        return self.memory.holdings.not_adopted(self.numbers, self.runs)


@dataclass(frozen=True, slots=True)
class SealedWindows:
    """The memory's publication, sealed or not."""

    memory: SequenceMemory
    runs: tuple[WindowRun, ...]
    is_shared: bool

    def map(self, handles: Sequence[PhysicalHandle]) -> None:
        reach(Failpoint.CLIENT_SEALED)
        self.memory.holdings.map_published(handles, is_shared=self.is_shared)

    def withdrawn(self) -> TakenBack:
        return self.memory.holdings.not_published(is_shared=self.is_shared)


@dataclass(frozen=True, slots=True)
class PlannedWindows:
    """Those of the memory's publication, mapped as they are: only their handles are of interest, and nothing fails."""

    memory: SequenceMemory
    runs: tuple[WindowRun, ...]

    def map(self, handles: Sequence[PhysicalHandle]) -> None:
        self.memory.holdings.hold_published(handles)

    def withdrawn(self) -> TakenBack:
        return TakenBack()


Piece = OwnWindows | JoinedWindows | AdoptedWindows | SealedWindows | PlannedWindows


def pieces_of(ask: Ask, answers: Sequence[wire.Answer]) -> Iterator[Piece]:
    """What `answers` to `ask` hand over, in their order."""
    for answer in answers:
        match answer:
            case wire.Committed(runs=runs) if runs:
                yield OwnWindows(ask.memory, window_runs(runs), _wanted(ask))
            case wire.Published(runs=runs):
                yield PlannedWindows(ask.memory, window_runs(runs))
            case wire.Joined(prefix=number, tokens=tokens, runs=runs):
                yield JoinedWindows(ask.memory, window_runs(runs), number, tokens)
            case wire.Found(prefix=number, tokens=tokens, runs=runs) if runs:
                yield JoinedWindows(ask.memory, window_runs(runs), number, tokens)
            case wire.Adopted(what="adopted", prefixes=numbers, shared=shared, runs=runs):
                if numbers:
                    yield AdoptedWindows(ask.memory, window_runs(shared), numbers)
                if runs:
                    yield OwnWindows(ask.memory, window_runs(runs), _windows_of(ask.memory, window_runs(shared + runs)))
            case wire.Sealed(runs=runs, refusal=refusal):
                yield SealedWindows(ask.memory, window_runs(runs), is_shared=refusal is None)


def _wanted(ask: Ask) -> Windows:
    shape = ask.memory.holdings.shape
    match ask:
        case Grow(tokens=tokens) | Spend(tokens=tokens) | Join(grow_to=int(tokens)) | Find(grow_to=tokens):
            return shape.windows(tokens)
        case TakeSnapshot(tokens=tokens):
            return snapshot_windows(ask.memory, tokens)
    return ask.memory.windows


def _windows_of(memory: SequenceMemory, runs: Sequence[WindowRun]) -> Windows:
    """How many windows every fragment of a group has, when it has these and no others."""
    ends: dict[tuple[int, int], int] = {}
    for run in sorted(runs):
        place = run.group, run.fragment
        if run.start == ends.get(place, 0):  # or a hole lies before it
            ends[place] = run.start + run.count
    groups = enumerate(memory.holdings.shape.groups)
    return tuple(min(ends.get((g, fragment), 0) for fragment in range(group.fragments)) for g, group in groups)


def size_of(piece: Piece) -> int:
    """Bytes of its windows."""
    return piece.memory.holdings.shape.granule_bytes * sum(run.count for run in piece.runs)
