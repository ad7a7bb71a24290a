"""The pieces of one redemption, put together: descriptors in window order, or an error and nothing left open.

A piece of an older redemption, which its client gave up, is closed and passed over.
"""

from __future__ import annotations

from contextlib import ExitStack

from kvcluster.attach.line import Heard, Line
from kvcluster.attach.protocol import Descriptors
from kvcluster.attach.sockets import close_all
from kvcluster.errors import LimitReached
from kvcluster.wire.faults import raise_fault
from kvcluster.wire.messages import Fault, Handed, NotHanded


def redeemed(line: Line, ask: int, deadline: float) -> Descriptors:
    """What answers redemption `ask`; the caller owns the descriptors.

    Raises:
        DeviceUnreachable, LimitReached, or what the device refused with. Whatever arrived is closed.
    """
    fds: list[int] = []
    sizes: list[int] = []
    with ExitStack() as arrived:
        is_complete = False
        while not is_complete:
            heard = _next(line, ask, deadline)
            arrived.callback(close_all, heard.fds)
            handed = _handed(line, heard)
            _check(line, handed, heard, len(fds))
            fds += heard.fds
            sizes += handed.handle_bytes
            is_complete = len(fds) == handed.total
        arrived.pop_all()
    return Descriptors(tuple(fds), tuple(sizes))


def _next(line: Line, ask: int, deadline: float) -> Heard:
    """The next message that does not answer an older redemption."""
    while True:
        heard = line.hear(deadline)
        match heard.message:
            case Handed(ask=of) | NotHanded(ask=of) if of < ask:
                close_all(heard.fds)  # at once: there may be no room for them and for ours
            case _:
                return heard


def _handed(line: Line, heard: Heard) -> Handed:
    match heard.message:
        case Handed() as handed:
            return handed
        case NotHanded(fault=fault) | (Fault() as fault):
            raise_fault(fault)
    raise line.lost(f"it said {heard.message.verb!r} where descriptors were due")


def _check(line: Line, handed: Handed, heard: Heard, before: int) -> None:
    if not heard.is_whole:
        remedy = "raise the limit of open files (ulimit -n), or use larger granules"
        raise LimitReached(limit="descriptors", need=handed.total, free=before + len(heard.fds), remedy=remedy)
    is_sound = len(heard.fds) == len(handed.handle_bytes) == handed.count and before + handed.count <= handed.total
    if not is_sound or (handed.count == 0 and handed.total > 0):
        raise line.lost(f"{len(heard.fds)} descriptors came where {handed.count} of {handed.total} were announced")
