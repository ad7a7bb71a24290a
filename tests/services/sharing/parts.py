"""What the model of sharing is made of: prefixes and requests in windows, and each handle as the windows it covers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from kvcluster.geometry.residency import GroupShape, Keeps, Shape
from kvcluster.geometry.windows import Window, windows_of
from kvcluster.ids import WindowRun
from kvcluster.wire import messages as wire
from tests.services.device_world import Client, Request

CAPACITY, QUOTA, MOST = 40, 20, 160  # granules, acme's, and tokens; measured smaller, the quota is not guarded
TENANTS = ("", "acme")
PLAIN = (GroupShape(1, 256), GroupShape(2, 96))
SLIDING = (GroupShape(1, 256), GroupShape(1, 128, Keeps.RING, 2), GroupShape(1, 128, Keeps.SNAPSHOT, 1))
Piece = frozenset[Window]
"""What one handle covers."""


@dataclass(eq=False)
class Prefix:
    number: int
    tenant: str
    shape: Shape
    tokens: int
    windows: tuple[int, ...]
    base: tuple[int, ...]
    parent: Prefix | None
    users: set[Mine] = field(default_factory=set)
    pins: set[Client] = field(default_factory=set)
    owner: Mine | None = None  # until it is sealed
    is_kept: bool = False
    ids: tuple[int, ...] = ()  # by which it is found
    root: bytes = b""
    pieces: set[Piece] = field(default_factory=set)  # what lies beyond its parent's

    @property
    def granules(self) -> int:
        return 0 if self.owner else self.shape.window_count(self.windows) - self.shape.window_count(self.base)

    def whole(self, wanted: tuple[int, ...]) -> tuple[int, ...]:
        """At most so many of its windows, and no handle in part."""
        pieces = {piece for link in chain_of(self) for piece in link.pieces}
        inside = map(min, wanted, self.windows)
        return tuple(
            next(n for n in range(count, -1, -1) if not straddles(pieces, g, n)) for g, count in enumerate(inside)
        )


@dataclass(eq=False)
class Mine:
    """A request."""

    request: Request
    client: Client
    shape: Shape
    own: set[Window] = field(default_factory=set)
    piece_of: dict[Window, Piece] = field(default_factory=dict)  # for each of its own
    uses: list[tuple[Prefix, tuple[int, ...]]] = field(default_factory=list)
    writing: Prefix | None = None
    is_broken: bool = False
    root: bytes = b""
    ids: tuple[int, ...] = ()  # that it has named

    @property
    def place(self) -> tuple[str, bytes, Shape]:
        """Where its tokens are found."""
        return self.client.tenant, self.root, self.shape

    @property
    def is_running(self) -> bool:
        return bool(self.own or self.uses)

    @property
    def growth(self) -> int:
        """Granules that sixteen more tokens can take."""
        most = self.shape.window_count(self.shape.windows(MOST))
        left = most - len(self.own) - self.shape.window_count(self.shared)
        return 0 if self.is_broken else max(0, min(self.shape.window_count(self.shape.windows(16)), left))

    @property
    def shared(self) -> tuple[int, ...]:
        """Where its own windows begin."""
        windows = self.uses[-1][1] if self.uses else (0,) * len(self.shape.groups)
        return tuple(0 if g.keeps is Keeps.SNAPSHOT else n for g, n in zip(self.shape.groups, windows, strict=True))

    def missing(self, amount: int, *, snapshot: bool) -> set[Window]:
        wanted = self.shape.windows(amount)
        if snapshot:
            wanted = self.shape.with_snapshots(wanted)
        return all_windows(self.shape, self.shared, wanted) - self.own


def all_windows(shape: Shape, start: tuple[int, ...], stop: tuple[int, ...]) -> set[Window]:
    return set(windows_of(shape.runs(start, stop)))


def chain_of(prefix: Prefix | None) -> Iterator[Prefix]:
    while prefix is not None:
        yield prefix
        prefix = prefix.parent


def straddles(pieces: set[Piece], group: int, count: int) -> bool:
    """Whether one of the handles reaches across the end of so many windows of the group."""
    return any(min(piece).group == group and min(piece).number < count <= max(piece).number for piece in pieces)


def wire_run(run: WindowRun) -> wire.Run:
    return wire.Run(group=run.group, fragment=run.fragment, start=run.start, count=run.count)


def run_of(run: wire.Run) -> WindowRun:
    return WindowRun(run.group, run.fragment, run.start, run.count)


def may_join(mine: Mine, prefix: Prefix, amount: int) -> bool:
    """Whether it is sealed, one's own tenant's and of one's own shape, and something of it lies inside."""
    if prefix.owner or (prefix.tenant, prefix.shape) != (mine.client.tenant, mine.shape):
        return False
    inside = prefix.whole(mine.shape.shared_windows(amount))
    boundary = prefix.shape.reusable_tokens(prefix.windows, prefix.tokens)
    if mine.shape.has_rings and (inside != prefix.windows or amount <= boundary):
        return False
    return mine.shape.reusable_tokens(inside, min(amount, prefix.tokens)) > 0


def ids_of(family: int, count: int) -> tuple[int, ...]:
    """Tokens of one of a few prompts that begin alike: with families 0 and 1, for 37 tokens."""
    return tuple(n if n < 37 * (family != 2) else 1000 * family + n for n in range(count))


def common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def listable(shape: Shape, tokens: int, windows: tuple[int, ...]) -> int:
    """How many tokens such a prefix is found by: those before the first window that it lacks."""
    return tokens if windows == shape.shared_windows(tokens) else shape.reusable_tokens(windows, tokens)


def serves(mine: Mine, prefix: Prefix, tokens: int, windows: tuple[int, ...]) -> bool:
    """Whether it is found, and gives whoever has its first `tokens` tokens so many windows."""
    if prefix.ids[:tokens] != mine.ids[:tokens] or len(prefix.ids) < tokens or not may_join(mine, prefix, tokens):
        return False
    return all(map(int.__ge__, prefix.whole(mine.shape.shared_windows(tokens)), windows))
