"""A client's socket, with deadlines: one message out, one in, and every failure a DeviceUnreachable.

It is a DeviceGone where another process may serve there a moment later: nobody listens, or the connection ended, or
nothing is heard in time. No waiting cures the others.

Deadlines are of `time.monotonic()`. One thread at a time.
"""

from __future__ import annotations

import math
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from kvcluster.attach.sockets import (
    MAX_DESCRIPTORS,
    Packet,
    close_all,
    is_trusted,
    packet_socket,
    peer_of,
    receive,
    send,
    wait_for,
)
from kvcluster.errors import BadFrame, DeviceGone, DeviceUnreachable, LimitReached
from kvcluster.wire.codec import decode_socket, encode
from kvcluster.wire.messages import Message
from kvcluster.wire.socket import Fenced, Push, SocketMessage

_SHORTEST_S = 0.001  # the kernel takes a send timeout of 0 for "for ever"


@dataclass(frozen=True, slots=True)
class Heard:
    """A message, and the descriptors that came with it: the caller's. Not whole: some could not be received."""

    message: SocketMessage
    fds: tuple[int, ...]
    is_whole: bool


class Line:
    """`device` is what errors call the other end. What it says unasked is put aside, in `pushes`.

    That the session is fenced is not among them: it stays true.
    """

    def __init__(self, connection: socket.socket, device: str) -> None:
        self.socket = connection
        self.device = device
        self.pushes: deque[Push] = deque()
        self.is_fenced = False
        self._patience_s = math.inf
        self._is_gone: Callable[[], bool] = lambda: False

    def when_silent(self, patience_s: float, is_gone: Callable[[], bool]) -> None:
        """From now on whoever waits asks `is_gone` each time that nothing was heard for so long; True ends the line."""
        self._patience_s, self._is_gone = patience_s, is_gone

    def say(self, message: Message, deadline: float) -> None:
        """Send `message`, waiting for room.

        Raises:
            DeviceUnreachable: no room in time, or the connection has ended. Nothing was sent.
        """
        data = encode(message)
        while True:
            try:
                return send(self.socket, data)
            except BlockingIOError:
                self._wait(select.POLLOUT, deadline)
            except OSError as error:
                raise self._gone(f"the connection has ended ({error.strerror})") from None

    def hear(self, deadline: float) -> Heard:
        """The next answer; pushes that come before it are put aside.

        Raises:
            DeviceUnreachable: none in time, the connection has ended, or it was no message of ours; descriptors that
                came with it are closed.
        """
        while True:
            self._wait(select.POLLIN, deadline)
            try:
                packet = receive(self.socket, max_fds=MAX_DESCRIPTORS)
            except BlockingIOError:
                continue
            except OSError as error:
                raise self._gone(f"the connection has ended ({error.strerror})") from None
            heard = self._understood(packet)
            if not isinstance(heard.message, Push):
                return heard
            self._put_aside(heard.message)

    def overhear(self) -> None:
        """Put aside what was said unasked, without waiting. Nothing is due: answers that come are late, and dropped.

        Where the connection has ended, or says nonsense, whoever asks next hears of it.
        """
        with suppress(OSError, DeviceUnreachable):
            while packet := receive(self.socket, max_fds=MAX_DESCRIPTORS):
                heard = self._understood(packet)
                close_all(heard.fds)
                if isinstance(heard.message, Push):
                    self._put_aside(heard.message)

    def hear_end(self, deadline: float) -> None:
        """Return when the other end has read all that was said here, and closed the connection.

        Raises:
            DeviceUnreachable: not in time, or it closed without reading everything.
        """
        while True:
            self._wait(select.POLLIN, deadline)
            try:
                packet = receive(self.socket, max_fds=MAX_DESCRIPTORS)
            except BlockingIOError:
                continue
            except OSError as error:
                raise self.lost(f"the connection broke ({error.strerror})") from None
            if not packet.data:
                return
            close_all(packet.fds)

    def hang_up(self) -> None:
        """End the connection, and whoever waits on it, without closing the socket."""
        with suppress(OSError):  # the other end was faster
            self.socket.shutdown(socket.SHUT_RDWR)

    def lost(self, reason: str) -> DeviceUnreachable:
        return DeviceUnreachable(device=self.device, reason=reason)

    def _gone(self, reason: str) -> DeviceGone:
        return DeviceGone(device=self.device, reason=reason)

    def _put_aside(self, push: Push) -> None:
        if isinstance(push, Fenced):
            self.is_fenced = True
        else:
            self.pushes.append(push)

    def _understood(self, packet: Packet) -> Heard:
        with ExitStack() as undo:
            undo.callback(close_all, packet.fds)
            if not packet.data:
                raise self._gone("it closed the connection")
            try:
                message = decode_socket(packet.data)
            except BadFrame as error:
                raise self.lost(f"it said what this version does not understand ({error})") from None
            undo.pop_all()
        return Heard(message, packet.fds, packet.is_whole)

    def _wait(self, event: int, deadline: float) -> None:
        while not wait_for(self.socket, event, min(self._patience_s, deadline - time.monotonic())):
            if time.monotonic() >= deadline:
                raise self._gone("no answer in time")
            if self._is_gone():
                self.hang_up()
                raise self._gone(f"no answer within {self._patience_s:.0f} s, and it is not awake")


def open_line(address: str, deadline: float) -> Line:
    """Connect to a server of our own user.

    Raises:
        DeviceGone: nobody listens there, or not in time. Nothing stays open.
        DeviceUnreachable: another user's process does. Nothing stays open.
        LimitReached: this process has no descriptor left. Nothing changed.
    """
    name = address.replace("\0", "@")
    with ExitStack() as undo:
        connection = undo.enter_context(_new_socket())
        try:
            _connect(connection, address, deadline)
        except OSError as error:
            raise DeviceGone(device=name, reason=f"cannot connect ({error.strerror})") from None
        if not is_trusted(peer_of(connection)):
            raise DeviceUnreachable(device=name, reason="another user's process listens under its name")
        undo.pop_all()
    return Line(connection, name)


def _new_socket() -> socket.socket:
    try:
        return packet_socket()
    except OSError as error:
        remedy = f"raise the limit of open files, ulimit -n ({error.strerror})"
        raise LimitReached(limit="descriptors", need=1, free=0, remedy=remedy) from None


def _connect(connection: socket.socket, address: str, deadline: float) -> None:
    """Wait for a place in the server's queue, but not beyond the deadline (a non-blocking connect would not wait)."""
    micros = int(max(deadline - time.monotonic(), _SHORTEST_S) * 1e6)
    timeval = struct.pack("@ll", *divmod(micros, 1_000_000))
    connection.setblocking(True)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
    connection.connect(address)
    connection.setblocking(False)
