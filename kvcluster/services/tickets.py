"""Which handles a session may redeem: those of a frame's commits, seals and joins, in the order of their windows.

A ticket is good any number of times until one of the requests in it gives one of its windows back, or ends. Several
tickets may name one handle: a prefix is joined by many, and a joiner's ticket does not end with another's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from kvcluster.errors import NotAllowed
from kvcluster.ids import RequestId
from kvcluster.memory.handle import Handle


@dataclass(frozen=True, slots=True)
class Share:
    """One request's handles in a ticket, in the order of its answers' windows."""

    request: RequestId
    handles: tuple[Handle, ...]


class Tickets:
    """Those of one session, by the seq of the frame."""

    def __init__(self) -> None:
        self._shares: dict[int, tuple[Share, ...]] = {}
        self._of_request: dict[RequestId, dict[int, frozenset[Handle]]] = {}

    def add(self, seq: int, shares: Sequence[Share]) -> None:
        """Frame `seq` hands these over."""
        if not shares:
            return
        self._shares[seq] = tuple(shares)
        for share in shares:
            mine = self._of_request.setdefault(share.request, {})
            mine[seq] = mine.get(seq, frozenset()) | frozenset(share.handles)

    def find(self, seq: int) -> tuple[Handle, ...]:
        """The handles that frame `seq` hands over.

        Raises:
            NotAllowed: there is no such ticket, or some of its windows were released.
        """
        if seq not in self._shares:
            raise NotAllowed(reason=f"frame {seq} has no ticket, or its windows were released")
        return tuple(chain.from_iterable([share.handles for share in self._shares[seq]]))

    def void(self, request: RequestId, handles: Iterable[Handle]) -> None:
        """The request has these handles no longer: every ticket in which it has one of them ends."""
        gone = set(handles)
        for seq, mine in list(self._of_request.get(request, {}).items()):
            if not mine.isdisjoint(gone):
                self._drop(seq)

    def end(self, request: RequestId) -> None:
        """The request is over, and so is every ticket that names it."""
        for seq in list(self._of_request.get(request, ())):
            self._drop(seq)

    def clear(self) -> None:
        """Nobody will redeem anything."""
        self._shares.clear()
        self._of_request.clear()

    def _drop(self, seq: int) -> None:
        for request in {share.request for share in self._shares.pop(seq)}:
            mine = self._of_request[request]
            del mine[seq]
            if not mine:
                del self._of_request[request]
