"""A prefix that several requests share: which handles it has, who uses it, and whom it builds on.

    WRITING   planned: its windows are still its publisher's; or retained of an ended request, and not sealed yet
    SEALED    nobody writes it any more; requests join it
    DRAINED   given up, or its memory is gone; nobody finds it any more

A prefix holds what lies beyond its parent: the prefix that its publisher used already. It lives as long as anybody
uses it: requests, *pins* (sessions whose process may still have it mapped), and the prefixes built on it. With
none of these it is *idle*: gone at once, or kept until its memory is needed. Bytes are booked in `services.sharing`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from kvcluster.errors import NotShareable
from kvcluster.geometry.residency import Shape
from kvcluster.geometry.shareability import Refusal
from kvcluster.ids import RequestId, WindowRun
from kvcluster.memory.handle import Handle
from kvcluster.states import State, moved


class PrefixState(State):
    WRITING = "writing"
    SEALED = "sealed"
    DRAINED = "drained"


PREFIX_MOVES: dict[PrefixState, frozenset[PrefixState]] = {
    PrefixState.WRITING: frozenset({PrefixState.SEALED, PrefixState.DRAINED}),
    PrefixState.SEALED: frozenset({PrefixState.DRAINED}),
    PrefixState.DRAINED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class Extent:
    """How far a prefix of `tokens` tokens reaches: windows [0, windows[g]) of each fragment, of which `base` are its
    parent's."""

    tokens: int
    windows: tuple[int, ...]
    base: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """Windows of a prefix, and their handles in the order of the runs."""

    windows: tuple[int, ...]
    runs: tuple[WindowRun, ...]
    handles: tuple[Handle, ...]


class SharedPrefix:
    """`owner` is the request that publishes it, until it is sealed; `is_kept`: not gone when nobody uses it.

    `content` stands for its tokens, and is the same for another prefix of the same tokens; empty: it is not told.
    """

    def __init__(
        self, number: int, tenant: str, shape: Shape, extent: Extent, parent: SharedPrefix | None = None
    ) -> None:
        self.number = number
        self.tenant = tenant
        self.shape = shape
        self.extent = extent
        self.parent = parent
        self.state = PrefixState.WRITING
        self.owner: RequestId | None = None
        self.is_kept = False
        self.content = b""
        self.is_idle = False
        self.users: set[RequestId] = set()
        self.pins: set[str] = set()
        self.children: OrderedDict[SharedPrefix, None] = OrderedDict()  # the oldest first
        self.busy_children = 0
        self.handles: tuple[Handle, ...] = ()
        self._own: dict[tuple[int, int], tuple[Handle, ...]] = {}

    @property
    def runs(self) -> tuple[WindowRun, ...]:
        """The windows beyond the parent's: one run a fragment."""
        return tuple(self.shape.runs(self.extent.base, self.extent.windows))

    @property
    def size_bytes(self) -> int:
        """Bytes of its own handles."""
        return sum(handle.size_bytes for handle in self.handles)

    @property
    def reusable_tokens(self) -> int:
        """Where one begins to compute who joins all of it."""
        return self.shape.reusable_tokens(self.extent.windows, self.extent.tokens)

    def move(self, to: PrefixState) -> None:
        """Raises InvariantBroken where `PREFIX_MOVES` does not have it."""
        self.state = moved(self.state, to, PREFIX_MOVES)

    def take(self, handles: Sequence[Handle]) -> None:
        """These back its own windows, in the order of `runs`."""
        self.handles = tuple(handles)
        left = iter(self.handles)
        for run in self.runs:
            windows, mine = 0, []
            while windows < run.count:
                mine.append(next(left))
                windows += mine[-1].size_bytes // self.shape.granule_bytes
            self._own[run.group, run.fragment] = tuple(mine)

    def whole(self, wanted: tuple[int, ...]) -> tuple[int, ...]:
        """At most `wanted` windows of each fragment, and no handle in part."""
        return tuple(self._edge(group, count) for group, count in enumerate(wanted))

    def part(self, windows: tuple[int, ...]) -> Part:
        """The first `windows` of each fragment, whole handles: its own and those of the prefixes below it."""
        runs = tuple(self.shape.runs((0,) * len(windows), windows))
        return Part(windows, runs, tuple(handle for run in runs for handle in self._backing(run)))

    def chain(self) -> Iterator[SharedPrefix]:
        """This one, its parent, and so on."""
        link: SharedPrefix | None = self
        while link is not None:
            yield link
            link = link.parent

    def only_for(self, request: RequestId) -> Iterator[SharedPrefix]:
        """This one and those that it builds on, as far as nobody but `request` uses them."""
        for depth, link in enumerate(self.chain()):
            others = link.busy_children - (depth > 0)  # the link above it is one
            if others or link.pins or link.users - {request} or link.owner not in (None, request):
                return
            yield link

    def _edge(self, group: int, count: int) -> int:
        for link in self.chain():
            start = link.extent.base[group]
            if count > start:
                fragments = range(self.shape.groups[group].fragments)
                common = set.intersection(*({start, *link._edges(group, f)} for f in fragments))
                return max(edge for edge in common if edge <= count)
        return 0

    def _edges(self, group: int, fragment: int) -> Iterator[int]:
        """Where its handles end, in windows from the fragment's start."""
        sizes = (handle.size_bytes // self.shape.granule_bytes for handle in self._own.get((group, fragment), ()))
        return accumulate(sizes, initial=self.extent.base[group])

    def _backing(self, run: WindowRun) -> Iterator[Handle]:
        """The handles of the run's windows; it starts at 0."""
        pieces: list[list[Handle]] = []
        count = run.count
        for link in self.chain():
            if count > link.extent.base[run.group]:
                ends = list(link._edges(run.group, run.fragment))[:-1]  # where each handle begins
                own = zip(link._own.get((run.group, run.fragment), ()), ends, strict=True)
                pieces.append([handle for handle, begins in own if begins < count])
            count = min(count, link.extent.base[run.group])
        for piece in reversed(pieces):
            yield from piece


class SharedPrefixes:
    """All prefixes of a device. Those that `turned` say that they went from idle to used or back, for the books."""

    def __init__(self) -> None:
        self._last = 0
        self._by_number: dict[int, SharedPrefix] = {}
        self._pinned: dict[str, set[SharedPrefix]] = {}

    def __iter__(self) -> Iterator[SharedPrefix]:
        return iter(self._by_number.values())

    def __len__(self) -> int:
        return len(self._by_number)

    def plan(self, tenant: str, shape: Shape, extent: Extent, parent: SharedPrefix | None) -> SharedPrefix:
        """A new prefix, WRITING, under a number that was never used; it keeps its parent alive. Nobody uses it yet."""
        self._last += 1
        prefix = SharedPrefix(self._last, tenant, shape, extent, parent)
        self._by_number[prefix.number] = prefix
        if parent is not None:
            parent.children[prefix] = None
            parent.busy_children += 1
        return prefix

    def find(self, number: int, tenant: str) -> SharedPrefix:
        """The prefix of this number, if this tenant may know of it.

        Raises:
            NotShareable: there is none, it is not shared yet, or it is another tenant's: which of these is not told.
        """
        prefix = self._by_number.get(number)
        if prefix is None or prefix.tenant != tenant or prefix.owner is not None:
            raise no_such_prefix(number)
        return prefix

    def use(self, prefix: SharedPrefix, request: RequestId) -> list[SharedPrefix]:
        """`request` uses it from now on. Returns those that turned."""
        prefix.users.add(request)
        return self.settle(prefix)

    def part(self, prefix: SharedPrefix, request: RequestId) -> list[SharedPrefix]:
        """`request` uses it no longer. Returns those that turned."""
        prefix.users.discard(request)
        return self.settle(prefix)

    def pin(self, prefix: SharedPrefix, session: str) -> list[SharedPrefix]:
        """The session's process may have it mapped until it is gone. Returns those that turned."""
        prefix.pins.add(session)
        self._pinned.setdefault(session, set()).add(prefix)
        return self.settle(prefix)

    def pinned_by(self, session: str) -> set[SharedPrefix]:
        """What the session's process may still have mapped, though none of its requests uses it."""
        return self._pinned.get(session, set())

    def process_gone(self, session: str) -> list[SharedPrefix]:
        """This session pins nothing any more. Returns those that turned."""
        turned = []
        for prefix in sorted(self._pinned.pop(session, ()), key=lambda p: p.number, reverse=True):
            prefix.pins.discard(session)
            turned += self.settle(prefix)
        return turned

    def settle(self, prefix: SharedPrefix) -> list[SharedPrefix]:
        """Look again who is idle, from `prefix` down to the prefixes that it builds on. Returns those that turned."""
        turned: list[SharedPrefix] = []
        for link in prefix.chain():
            idle = is_idle(link)
            if idle is link.is_idle:
                break
            link.is_idle = idle
            turned.append(link)
            if link.parent is not None:
                link.parent.busy_children += -1 if idle else 1
        return turned

    def remove(self, prefix: SharedPrefix) -> list[SharedPrefix]:
        """It is drained: nobody finds it any more, and its parent has a child less. Returns those that turned."""
        prefix.move(PrefixState.DRAINED)
        del self._by_number[prefix.number]
        if prefix.parent is None:
            return []
        prefix.parent.children.pop(prefix, None)
        prefix.parent.busy_children -= not prefix.is_idle
        return self.settle(prefix.parent)


def is_idle(prefix: SharedPrefix) -> bool:
    """Nobody uses it, and nobody who builds on it is used."""
    return prefix.owner is None and not (prefix.users or prefix.pins or prefix.busy_children)


def no_such_prefix(number: int) -> NotShareable:
    """One sentence, whatever the reason: a tenant does not learn what others have."""
    return NotShareable(kind=Refusal.NO_SUCH_PREFIX, reason=f"there is no such prefix: {number}")
