"""What waits to be sent on one connection: packets, each with the descriptors that it owns.

Sending never blocks. A descriptor is closed here when its packet was sent, was dropped, or the outbox is closed. The
size is bounded by what a client may ask: the welcome, and one redemption, because a client that asks again has
given up its older one.
"""

from __future__ import annotations

import errno
import socket
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from kvcluster.attach.sockets import close_all, send
from kvcluster.errors import LimitReached


@dataclass(frozen=True, slots=True)
class Outgoing:
    data: bytes
    fds: tuple[int, ...] = ()
    ask: int = 0  # of the redemption that it answers; 0 = of none


class Outbox:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._waiting: deque[Outgoing] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, packets: Iterable[Outgoing]) -> None:
        self._waiting.extend(packets)

    def forget_redemptions(self) -> None:
        """Drop, and close, what answers a redemption and was not sent yet."""
        for packet in self._waiting:
            if packet.ask:
                close_all(packet.fds)
        self._waiting = deque(packet for packet in self._waiting if not packet.ask)

    def flush(self) -> None:
        """Send what the peer has room for.

        Raises:
            LimitReached: the kernel takes no more descriptors under way. What was not sent is still waiting.
            OSError: the connection has ended.
        """
        while self._waiting:
            packet = self._waiting[0]
            try:
                send(self._connection, packet.data, packet.fds)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.ETOOMANYREFS:
                    raise _too_many(packet) from None
                raise
            self._waiting.popleft()
            close_all(packet.fds)

    def close(self) -> None:
        while self._waiting:
            close_all(self._waiting.popleft().fds)


def _too_many(packet: Outgoing) -> LimitReached:
    remedy = "clients that have not received theirs hold the user's limit (ulimit -n): ask again, or raise it"
    return LimitReached(limit="descriptors under way", need=len(packet.fds), free=0, remedy=remedy)
