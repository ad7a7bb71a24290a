"""Which replicas a request is offered to, in order: those at the device that is decided for, then others.

A replica sits at one device, as it told (`actors.routing_stats`); one that told nothing yet comes last. How many
requests each has is counted here, by this router's own: where several route, each sees its share. What is decided by
is `services.routing`; Serve is not known here.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from actors.feeds import POLL_S, Feeds
from actors.routing_stats import RoutingStats
from kvcluster.index.token_chain import BLOCK_TOKENS, ID_BYTES, digests, packed
from kvcluster.services.completion import CompletionRequest
from kvcluster.services.routing import KnownPrefixes

TWO = 2  # by chance, of which Serve takes the less busy one


class Seated(Protocol):
    """Serve's RunningReplica, as far as it counts here."""

    @property
    def replica_id(self) -> Hashable: ...

    @property
    def routing_stats(self) -> Mapping[str, Any]: ...


R = TypeVar("R", bound=Seated)


@dataclass(slots=True)
class Choice:
    """What is decided for one request: the device that it goes to, once it is."""

    place: str | None = None


class Routes(Generic[R]):
    """Of one deployment's replicas. For one event loop."""

    def __init__(self, *, poll_s: float = POLL_S) -> None:
        self._known = KnownPrefixes(clock=time.monotonic)
        self._feeds = Feeds(self._known, poll_s=poll_s, changed=self._reckon)
        self._seats: dict[str, list[R]] = {}  # by the device that they sit at
        self._stats: dict[Hashable, RoutingStats] = {}
        self._told_nothing: list[R] = []
        self._requests: Counter[Hashable] = Counter()
        self._basis: RoutingStats | None = None
        self._among = 0
        self._others: list[R] = []

    def seat(self, replicas: Iterable[R]) -> None:
        """These are all replicas that there are. Within a running loop."""
        self._seats, self._stats, self._told_nothing = {}, {}, []
        requests, self._requests = self._requests, Counter()
        for replica in replicas:
            name, stats = replica.replica_id, RoutingStats.from_dict(replica.routing_stats or {})
            self._requests[name] = requests[name]
            if stats is None:
                self._told_nothing.append(replica)
                continue
            self._stats[name] = stats
            self._seats.setdefault(stats.place, []).append(replica)
        self._feeds.follow_only(self._seats)
        for place in self._seats:
            self._tell(place)
        self._basis = _usual(self._stats.values())
        self._reckon()

    def gone(self, name: Hashable) -> None:
        """This replica is dead. Within a running loop."""
        left = [each for seats in (*self._seats.values(), self._told_nothing) for each in seats]
        self.seat([each for each in left if each.replica_id != name])

    def sent(self, name: Hashable) -> None:
        """A request went to this replica."""
        self._count(name, 1)

    def ended(self, name: Hashable) -> None:
        """A request that went to this replica is over, whatever came of it."""
        self._count(name, -1)

    def ranks(self, request: object, choice: Choice | None = None) -> list[list[R]]:
        """Replicas in the order in which they are to be offered it; none of those whose device is out of touch.

        What it takes there is counted off once: whoever asks again for one request, because all were full, gives the
        `choice` that was given before, and the device stays the same for as long as it is in touch.
        """
        ranks = (self._chosen(request, choice or Choice()), by_chance(self._others), by_chance(self._told_nothing))
        return [rank for rank in ranks if rank]

    def _chosen(self, request: object, choice: Choice) -> list[R]:
        """All at the device that is decided for."""
        if choice.place not in self._feeds.in_touch or choice.place not in self._seats:
            choice.place = self._decided(request)
        return self._seats[choice.place] if choice.place else []

    def _decided(self, request: object) -> str | None:
        basis = self._basis
        if basis is None:
            return None
        token_ids = _token_ids(request)
        root, answer_tokens = b"", 0
        if isinstance(request, CompletionRequest):
            root, answer_tokens = basis.root(request.cache_salt), request.n * request.max_tokens
        decision = self._known.decide(
            digests(root, token_ids) if root else iter(()),
            among=self._among,
            prompt_blocks=len(token_ids) // (BLOCK_TOKENS * ID_BYTES),
            block_bytes=basis.token_bytes * BLOCK_TOKENS,
            answer_bytes=basis.token_bytes * answer_tokens,
        )
        return decision.device if decision else None

    def _reckon(self) -> None:
        """Who is in touch has changed, or who sits where."""
        places = [place for place in self._seats if place in self._feeds.in_touch]
        self._among = self._known.set_of(places)
        self._others = [each for place in places for each in self._seats[place]]

    def _count(self, name: Hashable, change: int) -> None:
        if name in self._requests:
            self._requests[name] = max(0, self._requests[name] + change)
            if stats := self._stats.get(name):
                self._tell(stats.place)

    def _tell(self, place: str) -> None:
        """How many requests the device has."""
        self._known.has_requests(place, sum(self._requests[each.replica_id] for each in self._seats[place]))


def _usual(stats: Iterable[RoutingStats]) -> RoutingStats | None:
    """What those of one deployment have in common; while it is being changed, most of them."""
    alike = Counter(replace(each, device="", node_id="") for each in stats)
    return max(alike, key=alike.__getitem__, default=None)


def by_chance(replicas: Sequence[R]) -> list[R]:
    """Two of them, as power of two takes them; all, where there are no more."""
    return random.sample(replicas, min(TWO, len(replicas)))


def _token_ids(request: object) -> bytes:
    """The prompt's, packed; none where it is a text, or no prompt of ours."""
    if not isinstance(request, CompletionRequest) or isinstance(request.prompt, str):
        return b""
    try:
        return packed(request.prompt)
    except ValueError:  # whoever computes it says what is wrong with it
        return b""
