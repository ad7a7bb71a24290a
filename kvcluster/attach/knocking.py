"""Asking whoever listens at an address whether he is awake: for somebody who waits for him, and hears nothing.

A process that is stopped keeps its sockets: the kernel goes on connecting to them, and nobody ever answers. One that is
only busy answers, because what listens is a thread of its own (`attach.server`), which waits for a frame at most. The
question is a heartbeat without a hello, which a server refuses, and ends that connection: it begins no session, uses no
name, and takes no lock.
"""

from __future__ import annotations

import time

from kvcluster.attach.line import Line, open_line
from kvcluster.attach.sockets import close_all, is_hung_up, open_pidfd
from kvcluster.errors import DeviceUnreachable, LimitReached, SessionEnded
from kvcluster.wire.socket import Heartbeat


def silent_process(address: str, *, timeout_s: float) -> int | None:
    """A pidfd, which is the caller's, of the process that listens there and says nothing for so long.

    None where it answers or ends, where nobody listens, and where it cannot be asked: its queue is full, or this
    process has no descriptor left.
    """
    deadline = time.monotonic() + timeout_s
    try:
        line = open_line(address, deadline)
    except (DeviceUnreachable, LimitReached):
        return None
    with line.socket:
        if _answers(line, deadline) or is_hung_up(line.socket):
            return None
        try:
            return open_pidfd(line.socket, "")
        except (SessionEnded, LimitReached):  # it is dead by now
            return None


def _answers(line: Line, deadline: float) -> bool:
    try:
        line.say(Heartbeat(), deadline)
        close_all(line.hear(deadline).fds)
    except DeviceUnreachable:
        return False
    return True
