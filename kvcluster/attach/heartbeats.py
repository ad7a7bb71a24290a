"""A thread that says "alive" on a socket, once a period.

It must be a thread of its own: the model's thread is busy for long stretches, and a client that only computes is
alive. Packets are sent whole, so that it needs no lock against the thread that redeems. What the server has no room
for is left out: a missing heartbeat is judged by its arrival, not by its sending.
"""

from __future__ import annotations

import socket
import threading

from kvcluster.attach.sockets import send
from kvcluster.wire.codec import encode
from kvcluster.wire.socket import Heartbeat


class Heartbeats:
    def __init__(self, connection: socket.socket, period_s: float) -> None:
        self._connection = connection
        self._period_s = period_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="kvcluster-heartbeats", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Return when the thread has ended."""
        self._stopped.set()
        self._thread.join()

    def _beat(self) -> None:
        beat = encode(Heartbeat())
        while not self._stopped.wait(self._period_s):
            try:
                send(self._connection, beat)
            except BlockingIOError:
                continue
            except OSError:  # the server has gone; whoever asks next sees it on the socket
                return
