"""One client's session, as the device remembers it: replies, tickets, and whether it is alive.

Delivery is at-least-once and unordered, so every executed frame's reply is stored, refusals too, until the client
says that it has it (`ack`). What is at or below the highest ack was answered and received: a frame that shows up
there late is a duplicate and is never executed.

Checked in this order: epoch (in services.device), live, watermark, stored reply, room for another reply.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from kvcluster.errors import LateDuplicate, LimitReached, SessionEnded
from kvcluster.ids import HandleId
from kvcluster.memory.handle import Handle
from kvcluster.services.tickets import Share, Tickets
from kvcluster.states import State, moved
from kvcluster.units import MIB
from kvcluster.wire.socket import MOST_KNOWN


class SessionState(State):
    LIVE = "live"
    ORPHANED = "orphaned"  # its connection or its lease ended; its process may live and may have mappings
    GONE = "gone"  # its process is dead, or has said that it has no mapping left


SESSION_MOVES: dict[SessionState, frozenset[SessionState]] = {
    SessionState.LIVE: frozenset({SessionState.ORPHANED}),
    SessionState.ORPHANED: frozenset({SessionState.GONE}),
    SessionState.GONE: frozenset(),
}


@dataclass(frozen=True, slots=True)
class ReplyLimits:
    """What a client may leave unacknowledged, in stored replies; nothing is executed beyond either."""

    most: int = 4096
    most_bytes: int = 64 * MIB


class EndedNames:
    """The names of the last sessions that ended. A name is used once: a late frame must not find a new session."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._names: dict[str, None] = {}  # in the order in which they ended

    def add(self, name: str) -> None:
        self._names[name] = None
        if len(self._names) > self._most:
            del self._names[next(iter(self._names))]

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def __len__(self) -> int:
        return len(self._names)


class Session:
    """`name` is the client's, `pid` the kernel's word for its process, `heard_at` when that last said that it lives."""

    def __init__(self, name: str, pid: int, limits: ReplyLimits, now: float) -> None:
        self.name = name
        self.pid = pid
        self.state = SessionState.LIVE
        self.heard_at = now
        self._limits = limits
        self._ack = 0
        self._replies: dict[int, bytes] = {}
        self._reply_bytes = 0
        self._known: dict[HandleId, None] = {}  # in the order in which it last had them handed over
        self.tickets = Tickets()

    def move(self, to: SessionState) -> None:
        """Raises InvariantBroken where `SESSION_MOVES` does not have it."""
        self.state = moved(self.state, to, SESSION_MOVES)

    def orphan(self) -> None:
        """Its connection or its lease ended: nobody may ask for its replies or redeem its tickets any more."""
        self.move(SessionState.ORPHANED)
        self._replies.clear()
        self._reply_bytes = 0
        self.tickets.clear()
        self._known.clear()

    def answered(self, seq: int, ack: int) -> bytes | None:
        """The stored reply to frame `seq`; None if it is new and is to be executed.

        Raises:
            SessionEnded: the session is not live.
            LateDuplicate: the client has had the reply to this frame.
            LimitReached: too many replies wait for the client's acknowledgement.
        """
        if self.state is not SessionState.LIVE:
            raise SessionEnded(session=self.name)
        self._forget_up_to(ack)
        if seq <= self._ack:
            raise LateDuplicate(seq=seq, watermark=self._ack + 1)
        if seq not in self._replies:
            self._check_room()
        return self._replies.get(seq)

    def store(self, seq: int, reply: bytes, shares: Sequence[Share]) -> None:
        """Remember the reply, and which handles its ticket hands over, in window order."""
        self._replies[seq] = reply
        self._reply_bytes += len(reply)
        self.tickets.add(seq, shares)

    def ticket(self, seq: int) -> tuple[Handle, ...]:
        """The handles that frame `seq` hands over. May be asked any number of times until one is released.

        Raises:
            SessionEnded: the session is not live.
            NotAllowed: there is no such ticket, or some of its windows were released.
        """
        if self.state is not SessionState.LIVE:
            raise SessionEnded(session=self.name)
        return self.tickets.find(seq)

    @property
    def known(self) -> AbstractSet[HandleId]:
        """What it has probably imported: at least what a client may keep."""
        return self._known.keys()

    def knows(self, handles: Iterable[HandleId]) -> None:
        """These were handed over now, or the client said that it has them."""
        for handle in handles:
            self._known.pop(handle, None)
            self._known[handle] = None
        while len(self._known) > 2 * MOST_KNOWN:
            del self._known[next(iter(self._known))]

    def forget(self, handles: Iterable[HandleId]) -> list[HandleId]:
        """These exist no longer; returns those that it knew."""
        known = [handle for handle in handles if handle in self._known]
        for handle in known:
            del self._known[handle]
        return known

    @property
    def stored_replies(self) -> int:
        return len(self._replies)

    def _check_room(self) -> None:
        if len(self._replies) < self._limits.most and self._reply_bytes < self._limits.most_bytes:
            return
        remedy = "acknowledge what arrived, or end the session: a reply that was lost holds up all later ones"
        raise LimitReached(limit="stored replies", need=1, free=0, remedy=remedy)

    def _forget_up_to(self, ack: int) -> None:
        for seq in [seq for seq in self._replies if seq <= ack]:
            self._reply_bytes -= len(self._replies.pop(seq))
        self._ack = max(self._ack, ack)
