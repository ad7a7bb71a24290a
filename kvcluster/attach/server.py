"""The device's end of the attach sockets: descriptors out, and who is alive, in one thread.

The loop waits for the listener, a wake-up, the clients' sockets and their processes' pidfds, and calls a
`SessionEvents`. It never blocks on a client: sockets are non-blocking, and what a client does not read waits in its
own outbox. EOF is not death: a pidfd is watched until it fires, even long after its connection ended, or until its
client surrenders; when it fires first (a forked child holds the socket), the connection is closed here.

What the service has to say unasked goes out after each turn; `nudge` brings one about.

Not the place for leases, tickets or memory: those are the service's. Not for a client's manners: `attach.sessions`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from enum import Enum

from kvcluster.attach.listener import Listener
from kvcluster.attach.loop import Loop
from kvcluster.attach.protocol import Descriptors, SessionEvents, Survivor
from kvcluster.attach.sessions import Sessions

__all__ = ["AttachServer", "Descriptors", "SessionEvents", "open_attach_server"]

IDLE_S = 1.0


class _Phase(Enum):
    OPEN = "open"
    SERVING = "serving"
    CLOSING = "closing"
    CLOSED = "closed"


def open_attach_server(
    device: str,
    events: SessionEvents,
    *,
    survivors: Sequence[Survivor] = (),
    clock: Callable[[], float] = time.monotonic,
) -> AttachServer:
    """Listen for the clients of `device`, under a name of its own; the caller runs `serve` on a thread.

    Of `survivors` the deaths are told too, though they have not said hello here. Connections that do not say hello are
    dropped after a while, by `clock`.

    Raises:
        ValueError: the device's name is too long for a socket's.
        OSError: no descriptor is left. Nothing stays open.
    """
    listener = Listener.open(device)
    try:
        loop = Loop.open()
    except OSError:
        listener.close()
        raise
    server = AttachServer(listener, loop, events, clock=clock)
    server.survived(survivors)
    return server


class AttachServer:
    """`address` is what a client connects to. One thread serves; any may close."""

    def __init__(self, listener: Listener, loop: Loop, events: SessionEvents, *, clock: Callable[[], float]) -> None:
        self.address = listener.address
        self._listener = listener
        self._loop = loop
        self._events = events
        self._clock = clock
        self._sessions = Sessions(loop, events)
        self._phase = _Phase.OPEN
        self._phase_lock = threading.Lock()

    def survived(self, survivors: Sequence[Survivor]) -> None:
        """Watch these processes, whose pidfds are the server's from now on. Before `serve`."""
        self._sessions.survived(survivors)

    def serve(self) -> None:
        """Serve until `close`, or until `events` breaks an invariant; then everything is closed.

        Raises:
            RuntimeError: another thread serves already.
            InvariantBroken, or whatever else `events` raised against its protocol. Everything is closed.
        """
        if not self._begins():
            return
        try:
            self._loop.watch(self._listener.fileno(), self._knocked)
            self._turns()
        finally:
            with self._phase_lock:
                self._shut()

    def nudge(self) -> None:
        """The service may have something to say to sessions: send it soon. From any thread; waits for nobody."""
        with self._phase_lock:
            if self._phase is _Phase.SERVING:
                self._loop.wake()

    def close(self) -> None:
        """End `serve` soon, or close at once where nobody serves. Again: nothing. Waits for nobody."""
        with self._phase_lock:
            if self._phase is _Phase.OPEN:
                self._shut()
            elif self._phase is _Phase.SERVING:
                self._phase = _Phase.CLOSING
                self._loop.wake()

    def _begins(self) -> bool:
        with self._phase_lock:
            if self._phase is _Phase.SERVING:
                raise RuntimeError("another thread serves already")
            if self._phase is not _Phase.OPEN:
                return False
            self._phase = _Phase.SERVING
            return True

    def _turns(self) -> None:
        idle_at = time.monotonic() + IDLE_S
        while self._phase is _Phase.SERVING:
            self._loop.turn(idle_at - time.monotonic())
            if time.monotonic() >= idle_at:
                idle_at = time.monotonic() + IDLE_S
                self._events.idle()
                self._sessions.drop_silent(self._clock())
            self._sessions.push_all()

    def _knocked(self, _events: int) -> None:
        connection = self._listener.accept()
        if connection is not None:
            self._sessions.admit(connection, self._clock())

    def _shut(self) -> None:
        self._phase = _Phase.CLOSED
        self._sessions.close()
        self._listener.close()
        self._loop.close()
