"""What a client says and what happens to it, told to the service as `SessionEvents`.

    survivor     -> welcomed, or gone                   (of an earlier incarnation; only its death is heard of)
    connection   accepted -> welcomed -> closed         (by EOF, by an error, by its process's death, by its silence)
    session      welcomed -> disconnected -> gone       (gone: only when the pidfd fires)
                 welcomed -> surrendered                (its client's own word: the pidfd is watched no longer)

A session that the service has fenced keeps its connection: its client is to hear of it there, and to surrender.
Everything here runs on the server's one thread. A session's name is used once: as long as its process lives, nobody
else may say hello under it. A client that does not keep to the protocol is told so and dropped.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial

from kvcluster.attach.connection import Connection
from kvcluster.attach.loop import READ, WRITE, Loop
from kvcluster.attach.protocol import SessionEvents, Survivor
from kvcluster.attach.sockets import open_pidfd, peer_of
from kvcluster.errors import BadFrame, KvClusterError, NotAllowed
from kvcluster.ids import ImportKey
from kvcluster.wire.faults import fault_of
from kvcluster.wire.socket import Heartbeat, Hello, Redeem, SocketMessage, Surrender

HELLO_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class _Watch:
    """A session's process, from its welcome to its death; a survivor's from the beginning, without a connection."""

    session: str
    pidfd: int
    connection: Connection | None = None

    @property
    def hears(self) -> Connection | None:
        """Its connection, while that stands."""
        return None if self.connection is None or self.connection.closed else self.connection


class Sessions:
    def __init__(self, loop: Loop, events: SessionEvents) -> None:
        self._loop = loop
        self._events = events
        self._connections: dict[Connection, float] = {}  # since when
        self._watches: dict[str, _Watch] = {}

    def survived(self, survivors: Sequence[Survivor]) -> None:
        """Watch these processes, whose pidfds are ours from now on."""
        for survivor in survivors:
            self._watch(_Watch(survivor.session, survivor.pidfd))

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
            connection = watch.hears if watch is not None else None
            if connection is not None:
                connection.push(push)
                self._flush(connection)

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
        return None if connection.closed else self._flush(connection)

    def _answer(self, connection: Connection, message: SocketMessage) -> None:
        match message, connection.session:
            case Hello(), None:
                self._hello(connection, message)
            case Redeem(), str(session):
                self._redeem(connection, session, message)
            case Heartbeat(), str(session):
                self._events.heartbeat(session)
            case Surrender(), str(session):
                self._surrendered(connection, session)
            case _:
                raise BadFrame(field="verb", reason=f"{message.verb} is not expected here")

    def _hello(self, connection: Connection, hello: Hello) -> None:
        before = self._watches.get(hello.session)
        if before is not None and before.connection is not None:
            raise NotAllowed(reason=f"session {hello.session} already belongs to a process: open a new one")
        with ExitStack() as undo:
            pidfd = open_pidfd(connection.socket, hello.session)
            undo.callback(os.close, pidfd)
            welcome = self._events.hello(hello, pid=peer_of(connection.socket).pid)
            undo.pop_all()
        connection.session = hello.session
        if before is not None:
            self._unwatch(before)
        self._watch(_Watch(hello.session, pidfd, connection))
        connection.say(welcome)

    def _redeem(self, connection: Connection, session: str, redeem: Redeem) -> None:
        connection.asked(redeem.ask)
        known = frozenset(map(ImportKey._make, redeem.known))
        connection.hand(redeem.seq, partial(self._events.redeem, session, redeem.seq, known=known))

    def _surrendered(self, connection: Connection, session: str) -> None:
        """The end of the connection is the client's answer: it comes when the service has acted."""
        self._events.surrendered(session)
        self._unwatch(self._watches[session])
        self._close(connection)

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
        self._close(connection)
        if connection.session is not None:
            self._events.disconnected(connection.session)

    def _close(self, connection: Connection) -> None:
        self._loop.unwatch(connection.socket.fileno())
        del self._connections[connection]
        connection.close()

    def _watch(self, watch: _Watch) -> None:
        self._watches[watch.session] = watch
        self._loop.watch(watch.pidfd, partial(self._died, watch))

    def _unwatch(self, watch: _Watch) -> None:
        self._loop.unwatch(watch.pidfd)
        os.close(watch.pidfd)
        del self._watches[watch.session]

    def _died(self, watch: _Watch, _events: int) -> None:
        self._unwatch(watch)
        if (connection := watch.hears) is not None:
            self._drop(connection)
        self._events.gone(watch.session)
