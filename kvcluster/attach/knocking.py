"""Which process listens at an address, and whether it is awake: for somebody who waits for it, and hears nothing.

A process that is stopped keeps its sockets: the kernel goes on connecting to them, and nobody ever answers. One that
serves answers on a thread of its own (`attach.server`), which waits for the service's lock whenever another client says
something; so one that is at a single frame for all the time of the question is silent as well. The question is a
heartbeat without a hello, which a server refuses, and ends that connection: it begins no session and uses no name.
"""

from __future__ import annotations

import time

from kvcluster.attach.line import Line, open_line
from kvcluster.attach.sockets import close_all, is_hung_up, open_pidfd
from kvcluster.errors import DeviceUnreachable, LimitReached, SessionEnded
from kvcluster.wire.socket import Heartbeat


def process_at(address: str, *, timeout_s: float) -> int | None:
    """A pidfd, which is the caller's, of the process that listens there, awake or not.

    None where nobody listens, or it ends, and where that cannot be told: its queue is full for so long, or this process
    has no descriptor left.
    """
    try:
        line = open_line(address, time.monotonic() + timeout_s)
    except (DeviceUnreachable, LimitReached):
        return None
    with line.socket:
        return _process_of(line)


def silent_process(address: str, *, timeout_s: float) -> int | None:
    """The same of one that says nothing for so long; None also where it answers."""
    deadline = time.monotonic() + timeout_s
    try:
        line = open_line(address, deadline)
    except (DeviceUnreachable, LimitReached):
        return None
    with line.socket:
        return None if _answers(line, deadline) or is_hung_up(line.socket) else _process_of(line)


def _process_of(line: Line) -> int | None:
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
