"""Who may connect: processes of our own user, and only while a descriptor is left for them.

At the limit of descriptors `accept` fails and the connection stays in the queue, so that the loop would spin on it.
One spare descriptor is kept for that: it is given up, the connection is taken and closed, and the client reads an
end of file instead of waiting.
"""

from __future__ import annotations

import errno
import os
import socket
from contextlib import suppress

from kvcluster.attach.sockets import is_trusted, new_address, packet_socket, peer_of

_BACKLOG = 64


class Listener:
    def __init__(self, address: str, listening: socket.socket) -> None:
        self.address = address
        self._socket = listening
        self._spare: int | None = None

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
        if is_trusted(peer_of(connection)):
            connection.setblocking(False)
            return connection
        connection.close()
        return None

    def close(self) -> None:
        self._socket.close()
        self._give_up_spare()

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
