"""One client's connection as the server sees it: its socket, what waits for it, and whose it is.

Not the place for what messages mean (`attach.server`), nor for the loop.
"""

from __future__ import annotations

import socket

from kvcluster.attach.outbox import Export, Handing, Outbox, Outgoing
from kvcluster.attach.sockets import receive
from kvcluster.errors import BadFrame, KvClusterError
from kvcluster.wire.codec import decode_socket, encode
from kvcluster.wire.faults import fault_of
from kvcluster.wire.messages import Message
from kvcluster.wire.socket import NotHanded, Push, SocketMessage


class Connection:
    """`session` is None until its hello was accepted. A closed one ignores everything."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.session: str | None = None
        self._ask = 0
        self.closed = False
        self._outbox = Outbox(connection)

    @property
    def has_unsent(self) -> bool:
        return len(self._outbox) > 0

    def next_message(self) -> SocketMessage | None:
        """What the client says; None where it said nothing yet.

        Raises:
            BadFrame: not a message of ours.
            ConnectionError: the connection has ended.
        """
        try:
            packet = receive(self.socket)
        except BlockingIOError:
            return None
        if not packet.data:
            raise ConnectionResetError
        if not packet.is_whole:
            raise BadFrame(field="size", reason="too large, or with descriptors, which no client sends")
        return decode_socket(packet.data)

    def say(self, message: Message) -> None:
        self._outbox.put(Outgoing(encode(message)))

    def push(self, push: Push) -> None:
        """Say what was not asked for, once there is room for it."""
        self._outbox.push(push)

    def asked(self, ask: int) -> None:
        """A redemption begins; its client has given up older ones."""
        self._ask = ask
        self._outbox.forget_redemption()

    def hand(self, seq: int, export: Export) -> None:
        """Answer the redemption, in pieces of what a packet carries, each made by `export` as it is sent."""
        self._outbox.hand(Handing(self._ask, seq, export))

    def refuse(self, error: KvClusterError) -> None:
        """Answer the redemption, or what is left of it, with an error."""
        self._outbox.forget_redemption()
        self._outbox.put(Outgoing(encode(NotHanded(ask=self._ask, fault=fault_of(error))), ask=self._ask))

    def flush(self) -> None:
        """Send what there is room for; a redemption whose descriptors cannot be made or sent is refused.

        Raises:
            OSError: the connection has ended.
        """
        try:
            self._outbox.flush()
        except KvClusterError as error:
            self.refuse(error)
            self._outbox.flush()

    def close(self) -> None:
        self.closed = True
        self._outbox.close()
        self.socket.close()
