"""A client's end of the attach socket: its session's lifeline, the handles of what it committed, and pushes.

Where the server ends or closes the connection, `alive` is False from then on and nothing can be redeemed; what was
mapped before stays mapped and usable. Where the device has fenced the session (`is_fenced`), nothing is served to it
any more, though the connection stands: unmap everything, and `surrender`. After a redemption that failed in the middle
the next one starts clean: late pieces of the old one carry its number and are closed.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack

from kvcluster.attach.heartbeats import Heartbeats
from kvcluster.attach.line import Line, open_line
from kvcluster.attach.protocol import REPLY_TIMEOUT_S
from kvcluster.attach.redemption import Take, redeem_all
from kvcluster.attach.sockets import close_all, is_hung_up
from kvcluster.failpoints import Failpoint, reach
from kvcluster.ids import ImportKey
from kvcluster.wire.faults import raise_fault
from kvcluster.wire.messages import Fault
from kvcluster.wire.socket import Hello, Push, Redeem, Surrender, Welcome

__all__ = ["AttachClient", "open_attach_client"]


def open_attach_client(address: str, session: str, *, timeout_s: float) -> AttachClient:
    """Attach this process to a device as `session`; heartbeats go out from now on. The caller closes it.

    Raises:
        DeviceUnreachable: nobody listens there, no answer in time, or another user's process. Nothing stays open.
        LimitReached: this process has no descriptor left. Nothing stays open.
        Whatever the device refuses with. Nothing stays open.
    """
    deadline = time.monotonic() + timeout_s
    line = open_line(address, deadline)
    with ExitStack() as undo:
        undo.callback(line.socket.close)
        line.say(Hello(session=session), deadline)
        reach(Failpoint.CLIENT_HELLO)
        welcome = _welcome(line, deadline)
        reach(Failpoint.CLIENT_WELCOMED)
        line.device = welcome.device
        heartbeats = Heartbeats(line.socket, welcome.heartbeat_s)
        heartbeats.start()
        undo.pop_all()
    return AttachClient(line, welcome, heartbeats)


def _welcome(line: Line, deadline: float) -> Welcome:
    heard = line.hear(deadline)
    close_all(heard.fds)
    match heard.message:
        case Welcome() as welcome:
            return welcome
        case Fault() as fault:
            raise_fault(fault)
    raise line.lost(f"it answered hello with {heard.message.verb!r}")


class AttachClient:
    """`redeem` is for one thread at a time (a second one waits); `alive`, `pushes` and `close` for any."""

    def __init__(self, line: Line, welcome: Welcome, heartbeats: Heartbeats) -> None:
        self.welcome = welcome
        self._line = line
        self._heartbeats = heartbeats
        self._pid = os.getpid()
        self._asked = 0
        self._closed = False
        self._redeeming = threading.Lock()
        self._closing = threading.Lock()

    @property
    def alive(self) -> bool:
        """The connection stands: neither side has closed it."""
        with self._closing:
            return not self._closed and not is_hung_up(self._line.socket)

    @property
    def is_fenced(self) -> bool:
        """The device was heard to say that the session is over. It is heard by `pushes` and `redeem`, and for good."""
        return self._line.is_fenced

    def when_silent(self, is_gone: Callable[[], bool]) -> None:
        """Whoever waits here and hears nothing for a lease asks `is_gone` from now on, again and again.

        Where it says so, the connection is ended, and that is a DeviceUnreachable. Before the first wait.
        """
        self._line.when_silent(self.welcome.lease_s, is_gone)

    def redeem(
        self, seq: int, take: Take, *, known: Collection[ImportKey] = (), timeout_s: float = REPLY_TIMEOUT_S
    ) -> None:
        """Let `take` have each handle of the windows that frame `seq` committed, in their order, with a descriptor
        where it is not `known`.

        Each descriptor is closed once it was taken, so that few are open at once. A device that is slow is waited for
        as long as it is for a frame's reply; one that ends is noticed at once, and one that hangs as `when_silent` has
        it.

        Raises:
            DeviceUnreachable: the connection has ended, or no answer in time. While `alive`, asking again is fine.
            LimitReached: this process has no room for a packet's descriptors.
            Whatever the device refuses with, or `take` raises. None is left open; some may have been taken.
        """
        deadline = time.monotonic() + timeout_s
        with self._redeeming:
            if self._closed:
                raise self._line.lost("this client is closed")
            self._check_process()
            self._asked += 1
            self._line.say(Redeem(ask=self._asked, seq=seq, known=tuple(known)), deadline)
            redeem_all(self._line, self._asked, deadline, take)

    def pushes(self) -> tuple[Push, ...]:
        """What the device said unasked since the last call, in order. Never waits; nothing where it is closed.

        That the session is fenced is not among it: see `is_fenced`.
        """
        if not self._redeeming.acquire(blocking=False):
            return ()  # that redemption puts them aside
        try:
            if not self._closed and os.getpid() == self._pid:
                self._line.overhear()
            said = tuple(self._line.pushes)
            self._line.pushes.clear()
        finally:
            self._redeeming.release()
        return said

    def surrender(self, *, timeout_s: float = REPLY_TIMEOUT_S) -> None:
        """Say that this process has nothing of the session mapped any more, and never will: its last word.

        Returns when the device has acted on it: all that the session had is free, and nothing waits for this process
        to end. Said by one that is fenced, and by any other as a goodbye. Its imports are to be dropped before: they
        would hold memory that is free. A redemption under way is waited for. This client is closed, whatever comes of
        it.

        Raises:
            DeviceUnreachable: the connection has ended, or does not in time, or a process that was forked from the
                session's says it, which is no word of that one. What the session had may wait for the process's end.
        """
        deadline = time.monotonic() + timeout_s
        try:
            self._check_process()
            self._heartbeats.stop()  # one that came after the last word would be left unread
            with self._redeeming:
                if self._closed:
                    raise self._line.lost("this client is closed")
                reach(Failpoint.CLIENT_SURRENDERING)
                self._line.say(Surrender(), deadline)
                self._line.hear_end(deadline)
        finally:
            self.close()

    def close(self) -> None:
        """End the connection and the heartbeats; a redemption that is waiting fails. Again: nothing.

        In a process that was forked from the session's only its own descriptor is closed.
        """
        with self._closing:
            if self._closed:
                return
            self._closed = True
            if os.getpid() == self._pid:
                self._line.hang_up()
        self._heartbeats.stop()
        with self._redeeming:
            self._line.socket.close()

    def _check_process(self) -> None:
        """What a fork's child maps would outlive the pidfd that the device watches, and it may not speak for the other.

        Raises:
            DeviceUnreachable: this is one.
        """
        if os.getpid() != self._pid:
            raise self._line.lost(f"the session is process {self._pid}'s, which forked this one")
