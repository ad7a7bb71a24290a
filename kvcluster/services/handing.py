"""Handing a ticket's handles over: descriptors for those that the client has not imported, and its tickets' ends."""

from __future__ import annotations

import os
from contextlib import ExitStack

from kvcluster.attach.protocol import Descriptors, HandedHandle
from kvcluster.driver.protocol import Driver
from kvcluster.failpoints import Failpoint, reach
from kvcluster.ids import ImportKey, RequestId
from kvcluster.memory.handle import Handle
from kvcluster.services.sessions import Session
from kvcluster.services.tickets import Share
from kvcluster.services.work import Work


def exported(driver: Driver, handles: tuple[Handle, ...], known: frozenset[ImportKey], total: int) -> Descriptors:
    """A descriptor for each handle that is not known, all or none; they are a piece of `total`.

    Raises:
        LimitReached, DriverError: a descriptor could not be made. None is left open.
    """
    with ExitStack() as opened:
        handed = []
        for handle in handles:
            key, fd = _key_of(handle), None
            if key not in known:
                fd = driver.export_fd(handle.physical)
                opened.callback(os.close, fd)
                handle.was_handed_over = True
            handed.append(HandedHandle(key, handle.size_bytes, fd))
        reach(Failpoint.OWNER_HANDING)
        opened.pop_all()
    return Descriptors(tuple(handed), total)


def settled(session: Session, request: RequestId, work: Work) -> tuple[Share, ...]:
    """The session's tickets after a group: those that it voids end; what it hands over is returned."""
    if work.released:
        session.tickets.void(request, work.released)
    if work.is_ended:
        session.tickets.end(request)
    return (Share(request, tuple(work.handed)),) if work.handed else ()


def _key_of(handle: Handle) -> ImportKey:
    return ImportKey(handle.identity.number, handle.identity.generation, handle.is_sealed)
