"""What a client says to an owner of memory that it seeks, and what follows from each answer.

The owner's file tells which incarnation listens where (`services.session_file`). Another one than the one that was
lost is said hello to, again and again, until it welcomes the session. A hello whose answer was lost may have been
executed, and its name is used up: then, and only then, the client goes on under another name, and begins anew there.

The incarnation that was lost is said hello to as well. One that is dead, or hangs, does not answer. One that answers
lives, and has ended the session: no other will come. What the process has mapped of the session is quarantined there
until the process is dead, and nothing else gives it back; so it is told at once to end (DeviceUnreachable).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from kvcluster.attach.client import AttachClient, open_attach_client
from kvcluster.errors import DeviceUnreachable, NotAllowed
from kvcluster.ids import new_session
from kvcluster.services.contact import Link, Way
from kvcluster.services.session_file import Listening, listening_at

A = TypeVar("A")
W = TypeVar("W", bound=Way)

TIMEOUT_S = 10.0
ALIVE_TIMEOUT_S = 1.0  # of the one that was lost: it is asked again, and meanwhile one that hangs may be ended
MOST_MEETINGS = 8  # each takes a name, and some of what the owner remembers of names


@dataclass(frozen=True, slots=True)
class Lost:
    """A session of a device that is sought again: `epoch` is that of the incarnation that was lost; 0: none was."""

    device: str
    epoch: int
    session: str


class Hellos(Generic[A, W]):
    """Of one search, by the file at `path`.

    `find` is asked for whatever the owner is called by before it is said hello to, and may not know it yet; `opened`
    makes the way of that and the connection, which is closed where it raises.
    """

    def __init__(
        self,
        path: Path,
        lost: Lost,
        *,
        find: Callable[[], A | None],
        opened: Callable[[A, AttachClient], W],
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._path = path
        self._lost = lost
        self._session = lost.session
        self._find = find
        self._opened = opened
        self._timeout_s = timeout_s
        self._in_vain = 0
        self._meetings = 0  # times that it was welcomed

    def say(self) -> Link[W] | None:
        """The way to another incarnation; None where none answers now.

        Raises:
            DeviceUnreachable: the one that was lost lives, and no other will come; or `MOST_MEETINGS` ended before it
                could be used. Nothing stays open.
            KvClusterError, OSError: the other one refuses, or this process cannot use it. Nothing stays open.
        """
        there = listening_at(self._path)
        if there is None:
            return None
        if there.epoch == self._lost.epoch:
            self._check_dead(there)
            return None
        actor = self._find()
        return None if actor is None else self._greeted(there, actor)

    def _greeted(self, there: Listening, actor: A) -> Link[W] | None:
        try:
            return self._linked(there, actor)
        except DeviceUnreachable:  # it died again, or is leaving, or says nothing
            if self._meetings == MOST_MEETINGS:
                raise
            self._in_vain += 1
        except NotAllowed:
            if not self._in_vain:
                raise
            self._session = new_session()  # an earlier hello was executed
        return None

    def _linked(self, there: Listening, actor: A) -> Link[W]:
        with ExitStack() as undo:
            attach = open_attach_client(there.address, self._session, timeout_s=self._timeout_s)
            undo.callback(attach.close)
            self._meetings += 1
            way = self._opened(actor, attach)
            undo.pop_all()
        return Link(self._session, attach.welcome, way)

    def _check_dead(self, there: Listening) -> None:
        try:
            timeout_s = min(ALIVE_TIMEOUT_S, self._timeout_s)
            open_attach_client(there.address, self._session, timeout_s=timeout_s).close()
        except DeviceUnreachable:  # it is dead, or hangs, or is leaving
            return
        except NotAllowed:
            pass
        reason = "it lives, and has ended the session: what this process has of it is free when the process ends"
        raise DeviceUnreachable(device=self._lost.device, reason=reason)
