"""The pieces of one redemption, in window order: each descriptor is taken, and closed, before the next piece is heard.

So a client needs room for one packet's descriptors and for what it makes of them. A piece of an older redemption,
which its client gave up, is closed and passed over.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable

from kvcluster.attach.line import Heard, Line
from kvcluster.attach.protocol import HandedHandle
from kvcluster.attach.sockets import close_all
from kvcluster.errors import LimitReached
from kvcluster.ids import ImportKey
from kvcluster.wire.faults import raise_fault
from kvcluster.wire.messages import Fault
from kvcluster.wire.socket import Handed, NotHanded

Take = Callable[[HandedHandle], object]
"""Called with a handle of the ticket; its descriptor, where one came, is closed afterwards."""


def redeem_all(line: Line, ask: int, deadline: float, take: Take) -> None:
    """Let `take` have each handle that answers redemption `ask`, in order.

    Raises:
        DeviceUnreachable, LimitReached, what the device refused with, or what `take` raised. Whatever arrived is
            closed; some may have been taken.
    """
    taken = 0
    is_complete = False
    while not is_complete:
        heard = _next(line, ask, deadline)
        fds = deque(heard.fds)
        try:
            handed = _handed(line, heard)
            _check(line, handed, heard, taken)
            for number, generation, is_sealed, size_bytes, comes in handed.handles:
                key = ImportKey(number, generation, is_sealed)
                take(HandedHandle(key, size_bytes, fds[0] if comes else None))
                if comes:
                    os.close(fds.popleft())
        finally:
            close_all(tuple(fds))
        taken += len(handed.handles)
        is_complete = taken == handed.total


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
    count, comes = len(handed.handles), sum(handle[-1] for handle in handed.handles)
    if not heard.is_whole:
        remedy = "raise the limit of open files (ulimit -n), or use larger granules"
        raise LimitReached(limit="descriptors", need=comes, free=len(heard.fds), remedy=remedy)
    if len(heard.fds) != comes or before + count > handed.total or (count == 0 and handed.total > 0):
        came = f"{len(heard.fds)} descriptors came where {comes} were announced"
        raise line.lost(f"{came}, with handles {before} to {before + count} of {handed.total}")
