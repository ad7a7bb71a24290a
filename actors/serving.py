"""What the actor of every owner of memory does alike: its socket and threads, frames, an audit, and its end.

Frames come through Ray on the actor's one thread; the attach socket has a thread of its own, and so has each chore.
Whatever is no refusal (a broken invariant, or any error that is not ours) ends the process: what its clients have
mapped lives on in them. An owner without sessions leaves by itself after a while.

What is owned, and what a frame does, is the service's: `services.device`, `services.pages.service`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import ray

from actors.boundary import die, or_die, run_or_die
from actors.supervisor import tell_own_death, tell_own_leave
from kvcluster.attach.protocol import SessionEvents
from kvcluster.attach.server import AttachServer, open_attach_server
from kvcluster.errors import InvariantBroken
from kvcluster.failpoints import Failpoint, reach
from kvcluster.services.session_file import SessionFile

S = TypeVar("S")

LAST_WORDS_S = 1.0  # between an audit that fails and the end, so that whoever asked hears of it


class Service(SessionEvents, Protocol):
    """A `services.frame_service.FrameService`, as far as it is served."""

    @property
    def has_pushes(self) -> bool:
        """Whether somebody is to be told something."""

    def frame(self, data: bytes) -> bytes:
        """Execute one frame."""

    def close_if_idle(self, seconds: float) -> bool:
        """Close, if there was no session for so long; whether it was."""

    def close(self) -> None:
        """End every session, and give the memory back."""


class Chore(Protocol):
    """Work beside serving, on a thread of its own: `run` returns once `end` was called."""

    def run(self) -> None: ...

    def end(self) -> None: ...


def open_serving(
    name: str, service: Service, file: SessionFile, *, idle_exit_s: float, chores: Sequence[Chore] = ()
) -> Serving:
    """Serve the clients of `service`, an owner of this name, from now on; its `file` says where, and goes with it.

    Raises:
        ValueError, OSError: as `open_attach_server`. No thread was started.
    """
    server = open_attach_server(name, service, survivors=file.survivors)
    serving = Serving(service, server, file, idle_exit_s=idle_exit_s, chores=chores)
    serving.start()
    file.listens_at(server.address)
    return serving


class Serving:
    """Of one service; see `open_serving`."""

    def __init__(
        self, service: Service, server: AttachServer, file: SessionFile, *, idle_exit_s: float, chores: Sequence[Chore]
    ) -> None:
        self._service = service
        self._file = file
        self._server = server
        self._idle_exit_s = idle_exit_s
        self._chores = tuple(chores)
        self._closing = threading.Event()
        self._leaving = threading.Event()
        self._closed = threading.Lock()  # and never opened again
        self._broken: InvariantBroken | None = None
        self._asked_at = 0.0  # when somebody was told last where to attach, and comes

    def start(self) -> None:
        """Serve the socket, do the chores, and leave when idle: a thread each, until `close`. Comes once."""
        for work in (self._server.serve, *[chore.run for chore in self._chores], self._leave_when_idle):
            threading.Thread(target=run_or_die, args=(work,), name=work.__name__, daemon=True).start()

    @property
    def file(self) -> str:
        """Where the owner's incarnations are told of."""
        return str(self._file.path)

    def attach(self) -> str:
        """Where clients attach. Whoever asks an owner that is leaving is told that it is gone, and makes a new one."""
        if self._leaving.is_set():
            ray.actor.exit_actor()
        self._asked_at = time.monotonic()
        return self._server.address

    def frame(self, data: bytes) -> bytes:
        """One frame of a client; see `FrameService.frame`."""
        if self._broken is not None:
            die(self._broken)
        reply = or_die(lambda: self._service.frame(data))
        if self._service.has_pushes:
            self._server.nudge()
        return reply

    def audited(self, audit: Callable[[], S]) -> S:
        """What the service's audit says.

        Raises:
            InvariantBroken: it does not sum. This process ends a moment later, and at once where a frame comes first.
        """
        try:
            return audit()
        except InvariantBroken as broken:
            self._broken = broken
            tell_own_death(f"broken invariant: {broken.sentence}")
            threading.Timer(LAST_WORDS_S, die, args=(broken,)).start()
            raise

    def leave(self) -> bool:
        """Close, if no session is there; whether it did. Whoever says hello afterwards is refused, and makes a new one.

        The actor is of no use then; whoever calls this kills it next.
        """
        if not self._service.close_if_idle(0.0):
            return False
        self._leaving.set()
        tell_own_leave()
        self.close()
        return True

    def close(self) -> None:
        """Give back what no client has. The actor is of no use afterwards; whoever calls this kills it next.

        Again, also from another thread: nothing.
        """
        if not self._closed.acquire(blocking=False):
            return
        self._closing.set()
        for chore in self._chores:
            chore.end()
        self._file.listens_at("")
        self._server.close()
        self._service.close()
        self._file.close()

    def _leave_when_idle(self) -> None:
        while not self._closing.wait(timeout=min(1.0, self._idle_exit_s)):
            if time.monotonic() - self._asked_at < self._idle_exit_s:
                continue
            if self._service.close_if_idle(self._idle_exit_s):  # who says hello from now on is refused
                self._leaving.set()
                tell_own_leave()
                reach(Failpoint.OWNER_LEAVING)
                self.close()
                ray.kill(ray.get_runtime_context().current_actor)  # an end that Ray does not report as a crash


def stay_on(node_id: str) -> None:
    """An actor that finds itself on another node ends for good."""
    if ray.get_runtime_context().get_node_id() != node_id:
        ray.actor.exit_actor()
