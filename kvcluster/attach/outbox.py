"""What waits to be sent on one connection: messages, pushes, and what is left of one redemption.

Sending never blocks. A redemption waits without descriptors: those of a piece are made when it is to be sent and
closed at once, sent or not, so that at most one packet's are open in this process, however many clients there are.
The size is bounded by what a client may ask: the welcome, and the answer to one redemption, because a client that
asks again has given up its older one. Pushes that wait become one of each kind, and a client is told to forget only
what it was handed; one that is told that it is over is told nothing else.
"""

from __future__ import annotations

import errno
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from kvcluster.attach.protocol import Descriptors, HandedHandle
from kvcluster.attach.sockets import close_all, send
from kvcluster.errors import LimitReached
from kvcluster.wire.codec import encode
from kvcluster.wire.socket import MOST_FORGOTTEN, Fenced, Forget, Handed, Push, Reclaim

Export = Callable[[int], Descriptors]
"""Makes the descriptors of a ticket's next piece, from a handle on."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    data: bytes
    ask: int = 0  # of the redemption that it answers; 0 = of none


@dataclass(slots=True)
class Handing:
    """The answer to redemption `ask`, as far as it was sent. At least one piece: an empty ticket has an answer too."""

    ask: int
    seq: int
    export: Export
    sent: int = 0


class Outbox:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._waiting: deque[Outgoing] = deque()
        self._fenced: Fenced | None = None
        self._reclaim: Reclaim | None = None
        self._forgotten: dict[tuple[int, int], None] = {}
        self._handing: Handing | None = None

    def __len__(self) -> int:
        """Messages that wait; a redemption is one, and so are the pushes of a kind."""
        pushes = (self._fenced is not None) + (self._reclaim is not None) + bool(self._forgotten)
        return len(self._waiting) + pushes + (self._handing is not None)

    def put(self, packet: Outgoing) -> None:
        self._waiting.append(packet)

    def push(self, push: Push) -> None:
        """Of several demands the newest counts; what is to be forgotten is collected; after a fence nothing matters."""
        match push:
            case Fenced():
                self._fenced, self._reclaim = push, None
                self._forgotten.clear()
            case Reclaim():
                self._reclaim = push
            case Forget(handles=handles):
                self._forgotten.update(dict.fromkeys(handles))

    def hand(self, handing: Handing) -> None:
        self._handing = handing

    def forget_redemption(self) -> None:
        """Drop what answers a redemption and was not sent yet."""
        self._handing = None
        self._waiting = deque(packet for packet in self._waiting if not packet.ask)

    def flush(self) -> None:
        """Send what the peer has room for.

        Raises:
            KvClusterError: the next piece cannot be made, or the kernel takes no more descriptors under way
                (LimitReached). What was not sent is still waiting.
            OSError: the connection has ended.
        """
        while self._waiting:
            if not self._sent(self._waiting[0].data):
                return
            self._waiting.popleft()
        if not self._pushed():
            return
        while self._handing is not None:
            if not self._handed(self._handing):
                return

    def close(self) -> None:
        self._waiting.clear()
        self._fenced, self._reclaim, self._handing = None, None, None
        self._forgotten.clear()

    def _pushed(self) -> bool:
        """Whether no push waits any more."""
        if self._fenced is not None:
            if not self._sent(encode(self._fenced)):
                return False
            self._fenced = None
        if self._reclaim is not None:
            if not self._sent(encode(self._reclaim)):
                return False
            self._reclaim = None
        while some := tuple(islice(self._forgotten, MOST_FORGOTTEN)):
            if not self._sent(encode(Forget(handles=some))):
                return False
            for handle in some:
                del self._forgotten[handle]
        return True

    def _handed(self, handing: Handing) -> bool:
        """Whether the next piece was sent."""
        piece = handing.export(handing.sent)
        try:
            handles = tuple(_as_said(handle) for handle in piece.handles)
            said = Handed(ask=handing.ask, seq=handing.seq, total=piece.total, handles=handles)
            if not self._sent(encode(said), piece.fds):
                return False
        finally:
            close_all(piece.fds)
        handing.sent += len(piece.handles)
        if handing.sent >= piece.total:
            self._handing = None
        return True

    def _sent(self, data: bytes, fds: tuple[int, ...] = ()) -> bool:
        try:
            send(self._connection, data, fds)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno == errno.ETOOMANYREFS:
                raise _too_many(len(fds)) from None
            raise
        return True


def _as_said(handle: HandedHandle) -> tuple[int, int, bool, int, bool]:
    return *handle.key, handle.size_bytes, handle.fd is not None


def _too_many(count: int) -> LimitReached:
    remedy = "clients that have not received theirs hold the user's limit (ulimit -n): ask again, or raise it"
    return LimitReached(limit="descriptors under way", need=count, free=0, remedy=remedy)
