"""Who may connect: processes of our own user, and only while a descriptor is left for them.

Anybody on the machine may knock; who is not of our user is refused before a byte is read, and told of in the log once
a user, so that a stranger who knocks all day does not fill it.

At the limit of descriptors `accept` fails and the connection stays in the queue, so that the loop would spin on it.
One spare descriptor is kept for that: it is given up, the connection is taken and closed, and the client reads an
end of file instead of waiting.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
from contextlib import suppress

from kvcluster.attach.sockets import Peer, is_trusted, new_address, packet_socket, peer_of

MOST_STRANGERS = 16  # users that the log names
_BACKLOG = 64
_LOG = logging.getLogger(__name__)


class Listener:
    def __init__(self, address: str, listening: socket.socket) -> None:
        self.address = address
        self._socket = listening
        self._spare: int | None = None
        self._strangers: set[int] = set()

    @classmethod
    def open(cls, device: str) -> Listener:
        """Listen under a new name.

        Raises:
            ValueError: the device's name is too long for a socket's.
            OSError: no descriptor is left. Nothing stays open.
        """
        address = new_address(device)
        listening = packet_socket()
        try:
            listening.bind(address)
            listening.listen(_BACKLOG)
            listening.setblocking(False)
            found = cls(address, listening)
            found._keep_spare()
        except OSError:
            listening.close()
            raise
        return found

    def fileno(self) -> int:
        return self._socket.fileno()

    def accept(self) -> socket.socket | None:
        """The next connection; None where there is none that may be served."""
        try:
            connection, _ = self._socket.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._turn_away()
            return None
        peer = peer_of(connection)
        if is_trusted(peer):
            connection.setblocking(False)
            return connection
        connection.close()
        self._tell_of(peer)
        return None

    def close(self) -> None:
        self._socket.close()
        self._give_up_spare()

    def _tell_of(self, peer: Peer) -> None:
        if peer.uid in self._strangers or len(self._strangers) >= MOST_STRANGERS:
            return
        self._strangers.add(peer.uid)
        who = f"process {peer.pid}" if peer.pid else "a process of another pid namespace"
        _LOG.warning(
            "%s was refused at %s: it is user %d's, and only processes of user %d that this one can see may attach",
            who,
            self.address.replace("\0", "@"),
            peer.uid,
            os.geteuid(),
        )

    def _turn_away(self) -> None:
        self._give_up_spare()
        with suppress(OSError):
            self._socket.accept()[0].close()
        with suppress(OSError):
            self._keep_spare()

    def _keep_spare(self) -> None:
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _give_up_spare(self) -> None:
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None
