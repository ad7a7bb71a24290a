"""One client's session, as the device remembers it: replies, tickets, and whether it is alive.

Delivery is at-least-once and unordered, so every executed frame's reply is stored, refusals too, until the client
says that it has it (`ack`). What is at or below the highest ack was answered and received: a frame that shows up
there late is a duplicate and is never executed.

Checked in this order: epoch (in services.device), live, watermark, stored reply.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from kvcluster.errors import LateDuplicate, NotAllowed, SessionEnded
from kvcluster.memory.handle import Handle
from kvcluster.states import moved


class SessionState(Enum):
    LIVE = "live"
    ORPHANED = "orphaned"  # its connection ended; its process may live and may have mappings
    GONE = "gone"  # its process is dead


SESSION_MOVES: dict[SessionState, frozenset[SessionState]] = {
    SessionState.LIVE: frozenset({SessionState.ORPHANED}),
    SessionState.ORPHANED: frozenset({SessionState.GONE}),
    SessionState.GONE: frozenset(),
}


class Session:
    """`name` is the client's, `pid` the kernel's word for who is on the socket."""

    def __init__(self, name: str, pid: int, now: float) -> None:
        self.name = name
        self.pid = pid
        self.state = SessionState.LIVE
        self.heard_at = now
        self._ack = 0
        self._replies: dict[int, bytes] = {}
        self._tickets: dict[int, tuple[Handle, ...]] = {}

    def move(self, to: SessionState) -> None:
        """Raises InvariantBroken where `SESSION_MOVES` does not have it."""
        self.state = moved(self.state, to, SESSION_MOVES)

    def orphan(self) -> None:
        """Its connection ended: nobody will ask for its replies or redeem its tickets."""
        self.move(SessionState.ORPHANED)
        self._replies.clear()
        self._tickets.clear()

    def answered(self, seq: int, ack: int) -> bytes | None:
        """The stored reply to frame `seq`; None if it is new and is to be executed.

        Raises:
            SessionEnded: the session is not live.
            LateDuplicate: the client has had the reply to this frame.
        """
        if self.state is not SessionState.LIVE:
            raise SessionEnded(session=self.name)
        self._forget_up_to(ack)
        if seq <= self._ack:
            raise LateDuplicate(seq=seq, watermark=self._ack + 1)
        return self._replies.get(seq)

    def store(self, seq: int, reply: bytes, handed: Sequence[Handle]) -> None:
        """Remember the reply, and which handles its ticket hands over, in window order."""
        self._replies[seq] = reply
        if handed:
            self._tickets[seq] = tuple(handed)
            for handle in handed:
                handle.seq = seq

    def ticket(self, seq: int) -> tuple[Handle, ...]:
        """The handles that frame `seq` committed. May be asked any number of times until one is released.

        Raises:
            SessionEnded: the session is not live.
            NotAllowed: there is no such ticket, or some of its windows were released.
        """
        if self.state is not SessionState.LIVE:
            raise SessionEnded(session=self.name)
        if seq not in self._tickets:
            raise NotAllowed(reason=f"frame {seq} has no ticket, or its windows were released")
        return self._tickets[seq]

    def void(self, handles: Sequence[Handle]) -> None:
        """These handles are not the session's any more: their tickets end."""
        for handle in handles:
            self._tickets.pop(handle.seq, None)

    @property
    def stored_replies(self) -> int:
        return len(self._replies)

    def _forget_up_to(self, ack: int) -> None:
        for seq in [seq for seq in self._replies if seq <= ack]:
            del self._replies[seq]
        self._ack = max(self._ack, ack)
