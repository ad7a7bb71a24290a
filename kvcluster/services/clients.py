"""The clients of one device: who is here, who has gone, and what each is to be told.

A session is served while its connection is live. Its end has two steps: EOF takes back its grants and quarantines
what it had; only the kernel's word that the process is dead makes those bytes free. A name is used once. Called under
the device service's lock; knows no frames.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from kvcluster.errors import DeviceUnreachable, NotAllowed, SessionEnded
from kvcluster.ids import HandleId
from kvcluster.services.device_settings import DeviceSettings
from kvcluster.services.pressure import Pressure
from kvcluster.services.pushes import Pushes
from kvcluster.services.sessions import EndedNames, Session, SessionState
from kvcluster.wire.socket import Hello, Welcome


class Owner(Protocol):
    """The memory that clients have parts of, as far as it concerns how they end and what they are told."""

    @property
    def pressure(self) -> Pressure:
        """Who is asked to make room."""

    def drain_forgotten(self) -> Sequence[HandleId]:
        """Handles that are gone, since the last call."""

    def orphan(self, session: str) -> None:
        """Its connection ended: what it has is quarantined."""

    def process_gone(self, session: str) -> None:
        """Its process is dead: what was quarantined for it is free."""

    def is_haunted_by(self, session: str) -> bool:
        """Whether anything waits for its process to end."""

    def trim(self, limit_bytes: int) -> None:
        """Give back what nobody has, down to so much."""


class Clients:
    """`sessions` are those that are not over, by name; `is_leaving`: nobody new is taken."""

    def __init__(
        self,
        memory: Owner,
        settings: DeviceSettings,
        *,
        welcome: Callable[[], Welcome],
        clock: Callable[[], float],
    ) -> None:
        self.pushes = Pushes()
        self.sessions: dict[str, Session] = {}
        self.is_leaving = False
        self._memory = memory
        self._settings = settings
        self._welcome = welcome
        self._clock = clock
        self._ended = EndedNames(settings.most_ended)
        self._idle_since = clock()

    def hello(self, hello: Hello, *, pid: int) -> Welcome:
        """A client is here, in process `pid`. Raises as `DeviceService.hello`."""
        if self.is_leaving:
            raise DeviceUnreachable(device=self._settings.name, reason="it is leaving")
        if hello.session in self.sessions or hello.session in self._ended:
            raise NotAllowed(reason=f"session {hello.session} was here before: take a new name")
        self.sessions[hello.session] = Session(hello.session, pid, self._settings.replies, self._clock())
        return self._welcome()

    def find(self, name: str) -> Session:
        """The session of this name. Raises SessionEnded."""
        session = self.sessions.get(name)
        if session is None:
            raise SessionEnded(session=name)
        return session

    def heard(self, name: str) -> None:
        """It says that it lives."""
        if name in self.sessions:
            self.sessions[name].heard_at = self._clock()

    def disconnected(self, name: str) -> None:
        """Its connection ended, if it had one: what it has is quarantined."""
        session = self.sessions.get(name)
        if session is None or session.state is not SessionState.LIVE:
            return
        session.orphan()
        self._memory.orphan(name)
        self.pushes.drop(name)
        if not self._memory.is_haunted_by(name):
            self._forget(name)

    def gone(self, name: str) -> None:
        """Its process is dead: what it had is free."""
        self.disconnected(name)
        if name in self.sessions:
            self.sessions[name].move(SessionState.GONE)
            self._memory.process_gone(name)
            self._forget(name)

    def leave(self) -> None:
        """The device closes: every session ends, as if its connection had ended."""
        self.is_leaving = True
        for name in tuple(self.sessions):
            self.disconnected(name)

    def collect_pushes(self) -> None:
        """Take over what the last act left to say."""
        self.pushes.collect(self._memory.pressure, self._memory.drain_forgotten(), self.sessions)

    @property
    def idle_s(self) -> float:
        """Seconds since the last session went; 0 while there is one."""
        return 0.0 if self.sessions else self._clock() - self._idle_since

    @property
    def ended_names(self) -> int:
        """How many names of ended sessions are remembered."""
        return len(self._ended)

    def _forget(self, name: str) -> None:
        del self.sessions[name]
        self._ended.add(name)
        self._idle_since = self._clock()
        if not self.sessions:
            self._memory.trim(0)  # nobody is here to reuse what is pooled, and others may need the machine's memory
