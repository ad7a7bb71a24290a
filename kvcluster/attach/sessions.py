"""What a client says and what happens to it, told to the service as `SessionEvents`.

    connection   accepted -> welcomed -> closed         (by EOF, by an error, by its process's death, by its silence)
    session      welcomed -> disconnected -> gone       (gone: only when the pidfd fires)

Everything here runs on the server's one thread. A session's name is used once: as long as its process lives, nobody
else may say hello under it. A client that does not keep to the protocol is told so and dropped.
"""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial

from kvcluster.attach.connection import Connection
from kvcluster.attach.loop import READ, WRITE, Loop
from kvcluster.attach.protocol import SessionEvents
from kvcluster.attach.sockets import open_pidfd, peer_of
from kvcluster.errors import BadFrame, KvClusterError, NotAllowed
from kvcluster.ids import ImportKey
from kvcluster.wire.faults import fault_of
from kvcluster.wire.socket import Heartbeat, Hello, Redeem, SocketMessage

HELLO_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class _Watch:
    """A session's process, from its welcome to its death."""

    session: str
    pidfd: int
    connection: Connection


class Sessions:
    def __init__(self, loop: Loop, events: SessionEvents) -> None:
        self._loop = loop
        self._events = events
        self._connections: dict[Connection, float] = {}  # since when
        self._watches: dict[str, _Watch] = {}

    def admit(self, accepted: socket.socket, now: float) -> None:
        """Listen to a new connection, which is ours from now on."""
        connection = Connection(accepted)
        self._connections[connection] = now
        self._loop.watch(accepted.fileno(), partial(self._ready, connection))

    def drop_silent(self, now: float) -> None:
        """Close connections that have not said hello for `HELLO_TIMEOUT_S`: each takes a descriptor."""
        for connection, since in tuple(self._connections.items()):
            if connection.session is None and now - since >= HELLO_TIMEOUT_S:
                self._part(connection, NotAllowed(reason=f"no hello within {HELLO_TIMEOUT_S:.0f} s"))

    def push_all(self) -> None:
        """Send what the service has to say to sessions unasked; a session without a connection hears nothing."""
        for session, push in self._events.all_pushes():
            watch = self._watches.get(session)
            if watch is not None and not watch.connection.closed:
                watch.connection.push(push)
                self._flush(watch.connection)

    def close(self) -> None:
        """Close every connection and stop watching processes. The service is told nothing."""
        for connection in self._connections:
            connection.close()
        for watch in self._watches.values():
            os.close(watch.pidfd)
        self._connections.clear()
        self._watches.clear()

    def _ready(self, connection: Connection, events: int) -> None:
        if events & WRITE:
            self._flush(connection)
        if events & READ and not connection.closed:
            self._hear(connection)

    def _hear(self, connection: Connection) -> None:
        try:
            message = connection.next_message()
        except BadFrame as error:
            return self._part(connection, error)
        except OSError:
            return self._drop(connection)
        return None if message is None else self._heard(connection, message)

    def _heard(self, connection: Connection, message: SocketMessage) -> None:
        try:
            self._answer(connection, message)
        except KvClusterError as error:
            return self._part(connection, error)
        return self._flush(connection)

    def _answer(self, connection: Connection, message: SocketMessage) -> None:
        match message, connection.session:
            case Hello(), None:
                self._hello(connection, message)
            case Redeem(), str(session):
                self._redeem(connection, session, message)
            case Heartbeat(), str(session):
                self._events.heartbeat(session)
            case _:
                raise BadFrame(field="verb", reason=f"{message.verb} is not expected here")

    def _hello(self, connection: Connection, hello: Hello) -> None:
        if hello.session in self._watches:
            raise NotAllowed(reason=f"session {hello.session} already belongs to a process: open a new one")
        with ExitStack() as undo:
            pidfd = open_pidfd(connection.socket, hello.session)
            undo.callback(os.close, pidfd)
            welcome = self._events.hello(hello, pid=peer_of(connection.socket).pid)
            undo.pop_all()
        connection.session = hello.session
        watch = self._watches[hello.session] = _Watch(hello.session, pidfd, connection)
        self._loop.watch(pidfd, partial(self._died, watch))
        connection.say(welcome)

    def _redeem(self, connection: Connection, session: str, redeem: Redeem) -> None:
        connection.asked(redeem.ask)
        known = frozenset(map(ImportKey._make, redeem.known))
        connection.hand(redeem.seq, partial(self._events.redeem, session, redeem.seq, known=known))

    def _flush(self, connection: Connection) -> None:
        try:
            connection.flush()
        except OSError:
            return self._drop(connection)
        return self._loop.want(connection.socket.fileno(), READ | WRITE if connection.has_unsent else READ)

    def _part(self, connection: Connection, error: KvClusterError) -> None:
        """Say why, if the client has room for it, and close."""
        with suppress(BadFrame, OSError):
            connection.say(fault_of(error))
            connection.flush()
        self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        self._loop.unwatch(connection.socket.fileno())
        del self._connections[connection]
        connection.close()
        if connection.session is not None:
            self._events.disconnected(connection.session)

    def _died(self, watch: _Watch, _events: int) -> None:
        self._loop.unwatch(watch.pidfd)
        os.close(watch.pidfd)
        del self._watches[watch.session]
        if not watch.connection.closed:
            self._drop(watch.connection)
        self._events.gone(watch.session)
