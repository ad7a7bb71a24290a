"""The clients of one device: who is here, who has gone, and what each is to be told.

A session is served while its connection is live and it is heard (`services.leases`). Its end has two steps: the end
of either takes back its grants and quarantines what it had; only the kernel's word that the process is dead, or the
process's own that it has nothing mapped any more, makes those bytes free. One whose lease ended is fenced: it is told,
as soon as it listens again, and nothing that it says but surrender is heard. A name is used once. Called under the
device service's lock; knows no frames.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from kvcluster.errors import DeviceGone, NotAllowed, SessionEnded
from kvcluster.failpoints import Failpoint, reach
from kvcluster.ids import HandleId, RequestId
from kvcluster.services.device_settings import DeviceSettings
from kvcluster.services.leases import Leases
from kvcluster.services.pressure import Pressure
from kvcluster.services.pushes import Pushes
from kvcluster.services.session_file import SessionLog
from kvcluster.services.sessions import EndedNames, Session, SessionState
from kvcluster.wire.socket import Fenced, Hello, Welcome


class Owner(Protocol):
    """The memory that clients have parts of, as far as it concerns how they end and what they are told."""

    @property
    def pressure(self) -> Pressure:
        """Who is asked to make room."""

    def drain_forgotten(self) -> Sequence[HandleId]:
        """Handles that are gone, since the last call."""

    def collect_expired(self) -> None:
        """Grants whose time is over return."""

    def orphan(self, session: str) -> None:
        """Its connection or its lease ended: what it has is quarantined."""

    def process_gone(self, session: str) -> None:
        """Nothing of it is mapped anywhere: what was quarantined for it is free."""

    def surrendered(self, session: str) -> None:
        """Its process lives and gave everything up: whatever it noted, nobody goes on with its memory. Comes after
        `orphan`, and before `process_gone`."""

    def survived(self, session: str, size_bytes: int) -> None:
        """A client of an earlier incarnation lives, and has at most so much mapped."""

    def weigh(self, request: RequestId) -> None:
        """The request may have changed."""

    def mapped_bytes(self, session: str) -> int:
        """The most that the session's process may have mapped."""

    def waits_for(self, session: str) -> bool:
        """Whether anything waits for its process to end."""

    def shrink(self) -> bool:
        """Give back some of what nobody has; whether there is more."""


class Clients:
    """`sessions` are those that are not over, by name; `is_leaving`: nobody new is taken."""

    def __init__(
        self,
        memory: Owner,
        settings: DeviceSettings,
        *,
        welcome: Callable[[], Welcome],
        clock: Callable[[], float],
        log: SessionLog,
    ) -> None:
        self.pushes = Pushes()
        self.sessions: dict[str, Session] = {}
        self.is_leaving = False
        self._memory = memory
        self._settings = settings
        self._welcome = welcome
        self._clock = clock
        self._ended = EndedNames(settings.most_ended)
        self._leases = Leases(settings.lease_s, now_s=clock())
        self._log = log
        self._survivors = {survivor.session: survivor.pid for survivor in log.survivors}
        for survivor in log.survivors:
            memory.survived(survivor.session, survivor.size_bytes)
        self._idle_since = clock()

    def hello(self, hello: Hello, *, pid: int) -> Welcome:
        """A client is here, in process `pid`. Raises as `DeviceService.hello`."""
        if self.is_leaving:
            raise DeviceGone(device=self._settings.name, reason="it is leaving")
        if hello.session in self.sessions or hello.session in self._ended:
            raise NotAllowed(reason=f"session {hello.session} was here before: take a new name")
        if self._survivors.get(hello.session, pid) != pid:
            raise NotAllowed(reason=f"session {hello.session} is another process's: take a new name")
        self._log.enter(hello.session, pid)
        self._survivors.pop(hello.session, None)
        now_s = self._clock()
        self.sessions[hello.session] = Session(hello.session, pid, self._settings.replies, now_s)
        self._leases.heard(hello.session, now_s=now_s)
        return self._welcome()

    def find(self, name: str) -> Session:
        """The session of this name. Raises SessionEnded."""
        session = self.sessions.get(name)
        if session is None:
            raise SessionEnded(session=name)
        return session

    def find_live(self, name: str) -> Session:
        """The same where it is served. Raises SessionEnded, also for one that is orphaned."""
        session = self.find(name)
        if session.state is not SessionState.LIVE:
            raise SessionEnded(session=name)
        return session

    def heard(self, name: str) -> None:
        """It says that it lives. That gives one that is not LIVE nothing back."""
        session = self.sessions.get(name)
        if session is None:
            return
        session.heard_at = self._clock()
        if session.state is SessionState.LIVE:
            self._leases.heard(name, now_s=session.heard_at)

    def expire(self) -> None:
        """Those whose leases are over are fenced: what they have is quarantined, and they are to be told.

        Looks at the time: see `Leases.expired`. They stay in `sessions`, ORPHANED, for as long as their connections.
        """
        for name in self._leases.expired(now_s=self._clock()):
            self._orphan(name)
            reach(Failpoint.OWNER_FENCED)
            self.pushes.fence(Fenced(session=name))

    def disconnected(self, name: str) -> None:
        """Its connection ended, if it had one: what it has is quarantined."""
        if name not in self.sessions:
            return
        self._orphan(name)
        self.pushes.drop(name)
        if not self._memory.waits_for(name):
            self._forget(name)

    def gone(self, name: str) -> None:
        """Its process is dead: what it had is free. Again, or of one that is not known: nothing."""
        self._end(name)

    def surrendered(self, name: str) -> None:
        """Its process has nothing of it mapped any more, and says so: what it had is free.

        Of one that was fenced, and of one that is LIVE: it is over at once. Of one that is not known: nothing.
        """
        if name in self.sessions:
            self._orphan(name)
            self._memory.surrendered(name)
        self._end(name)

    def given_up(self, names: Sequence[str], *, by: Session) -> None:
        """The process of session `by` has nothing of these mapped any more: as `surrendered`, of its own ones alone."""
        for name in names:
            session = self.sessions.get(name)
            pid = self._survivors.get(name) if session is None else session.pid
            if pid == by.pid and name != by.name:
                self.surrendered(name)

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

    def _orphan(self, name: str) -> None:
        """What it has is quarantined, unless that was done before."""
        if self.sessions[name].state is SessionState.LIVE:
            self._leases.end(name)
            self.sessions[name].orphan()
            self._memory.orphan(name)

    def _end(self, name: str) -> None:
        """Nothing of it is mapped anywhere."""
        if self._survivors.pop(name, None) is not None:
            self._memory.process_gone(name)
            self._log.strike(name)
        if name not in self.sessions:
            return
        self._orphan(name)
        self.pushes.drop(name)
        self.sessions[name].move(SessionState.GONE)
        self._memory.process_gone(name)
        self._forget(name)

    def _forget(self, name: str) -> None:
        del self.sessions[name]
        self._log.strike(name)
        self._ended.add(name)
        self._idle_since = self._clock()
        if not self.sessions:
            self._memory.shrink()  # nobody is here to reuse what is pooled, and others may need the machine's memory
