"""A device actor's work, without Ray: sessions, frames, tickets, over the memory of one device.

One lock: a frame, a socket event and a statistics call each hold it for their whole duration, and nothing waits for
a client under it. After an act that broke off in the middle nothing is executed any more (`services.turns`).
Frames come from Ray or from a LocalDevice; hello, redemption and the end of a client come from the attach socket
(`attach.server.SessionEvents`). A session is served while its connection is live. Its end has two steps: EOF takes
back its grants and quarantines what it had; only the kernel's word that the process is dead makes those bytes free.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from kvcluster.attach.server import Descriptors
from kvcluster.attach.sockets import MAX_DESCRIPTORS
from kvcluster.driver.protocol import Driver, PhysicalHandle
from kvcluster.errors import (
    DeviceUnreachable,
    InvariantBroken,
    KvClusterError,
    NotAllowed,
    SessionEnded,
    StaleEpoch,
)
from kvcluster.failpoints import Failpoint, reach
from kvcluster.memory.handle import Handle, HandleState
from kvcluster.services.asks import MOST_RUNS
from kvcluster.services.audit import audit_memory
from kvcluster.services.device_memory import DeviceMemory, MemorySettings
from kvcluster.services.operations import Operations, runs_of_answers
from kvcluster.services.sessions import EndedNames, ReplyLimits, Session, SessionState
from kvcluster.services.statistics import DeviceStatistics
from kvcluster.services.turns import Turns
from kvcluster.wire import messages as wire
from kvcluster.wire.codec import decode_frame, encode, groups
from kvcluster.wire.faults import fault_of


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    """`epoch` is the incarnation's own number; `lease_s` and `heartbeat_s` are told to clients.

    `most_runs` is how many runs of windows one reply names, so that it fits into a frame, `replies` what one session
    may leave unacknowledged, and `most_ended` how many names of ended sessions are remembered.
    """

    name: str
    memory: MemorySettings
    epoch: int = 1
    lease_s: float = 30.0
    heartbeat_s: float = 5.0
    most_runs: int = MOST_RUNS
    replies: ReplyLimits = field(default_factory=ReplyLimits)
    most_ended: int = 4096


class DeviceService:
    """One device. Its methods may be called from any thread."""

    def __init__(self, driver: Driver, settings: DeviceSettings, *, clock: Callable[[], float]) -> None:
        self._driver = driver
        self._settings = settings
        self._clock = clock
        self._turns = Turns()
        self._memory = DeviceMemory(driver, settings.memory, clock=clock)
        self._operations = Operations(self._memory)
        self._sessions: dict[str, Session] = {}
        self._ended = EndedNames(settings.most_ended)
        self._leaving = False
        self._frames = 0
        self._peak_reserved_bytes = 0
        self._peak_committed_bytes = 0
        self._idle_since = clock()

    # --- frames ---------------------------------------------------------------------------------------------------

    def frame(self, data: bytes) -> bytes:
        """Execute one frame, or answer it as it was answered before.

        Raises:
            BadFrame: not a frame of ours. Nothing was executed.
            InvariantBroken: our bug, of this frame or an earlier one: whatever is sent from now on, this frame again
                included, is not executed. The caller stops the process. So with any other error.
        """
        frame = decode_frame(data)
        with self._turns:
            try:
                stored = self._admitted(frame).answered(frame.seq, frame.ack)
            except KvClusterError as refusal:
                return encode(self._reply(frame, fault=fault_of(refusal)))
            if stored is None:
                stored = self._executed(frame)
            reach(Failpoint.DEVICE_STORED)
            return stored

    def _admitted(self, frame: wire.Frame) -> Session:
        if frame.epoch != self._settings.epoch:
            raise StaleEpoch(sent=frame.epoch, current=self._settings.epoch)
        return self._session(frame.session)

    def _executed(self, frame: wire.Frame) -> bytes:
        try:
            return self._execute(frame)
        except KvClusterError as stray:  # refusals are results: this one came after something was kept
            raise InvariantBroken(sentence=f"a frame broke off: {type(stray).__name__}: {stray}") from stray

    def _execute(self, frame: wire.Frame) -> bytes:
        session = self._sessions[frame.session]
        handed: list[Handle] = []
        results: list[wire.GroupResult] = []
        runs_left = self._settings.most_runs
        for group in groups(frame):
            result, work = self._operations.perform(frame.session, group, runs_left=runs_left)
            results.append(result)
            runs_left -= runs_of_answers(result.answers)
            session.void(work.released)
            handed += work.handed
        reply = encode(self._reply(frame, results=tuple(results)))
        session.store(frame.seq, reply, handed)
        self._frames += 1
        self._note_peaks()
        return reply

    def _reply(
        self, frame: wire.Frame, results: tuple[wire.GroupResult, ...] = (), fault: wire.Fault | None = None
    ) -> wire.Reply:
        epoch = self._settings.epoch
        return wire.Reply(session=frame.session, seq=frame.seq, epoch=epoch, results=results, fault=fault)

    # --- clients: attach.server.SessionEvents ---------------------------------------------------------------------

    def hello(self, hello: wire.Hello, *, pid: int) -> wire.Welcome:
        """A client is here, in process `pid`.

        Raises:
            DeviceUnreachable: the device is leaving: find it again, or make a new one. Nothing changed.
            NotAllowed: there was a session of this name; a name is used once. Nothing changed.
        """
        with self._turns:
            if self._leaving:
                raise DeviceUnreachable(device=self._settings.name, reason="it is leaving")
            if hello.session in self._sessions or hello.session in self._ended:
                raise NotAllowed(reason=f"session {hello.session} was here before: take a new name")
            self._sessions[hello.session] = Session(hello.session, pid, self._settings.replies, self._clock())
            return self._welcome()

    def _welcome(self) -> wire.Welcome:
        settings = self._settings
        return wire.Welcome(
            device=settings.name,
            epoch=settings.epoch,
            granule_bytes=self._memory.granule_bytes,
            capacity_bytes=self._memory.capacity_bytes,
            lease_s=settings.lease_s,
            heartbeat_s=settings.heartbeat_s,
        )

    def redeem(self, session: str, seq: int, start: int = 0) -> Descriptors:
        """Descriptors for the windows that frame `seq` committed, a packet's from `start` on; the receiver closes them.

        Each piece asks for the ticket anew: a window that was released meanwhile may be somebody else's by now.

        Raises:
            SessionEnded, NotAllowed: see `Session.ticket`.
            LimitReached, DriverError: a descriptor could not be made. None is left open.
        """
        with self._turns:
            handles = self._session(session).ticket(seq)
            piece = handles[start : start + MAX_DESCRIPTORS]
            return export_all(self._driver, tuple(handle.physical for handle in piece), len(handles))

    def handles(self, session: str, seq: int) -> tuple[PhysicalHandle, ...]:
        """What `redeem` hands over, for a client in this very process. Raises as it does."""
        with self._turns:
            return tuple(handle.physical for handle in self._session(session).ticket(seq))

    def heartbeat(self, session: str) -> None:
        with self._turns:
            if session in self._sessions:
                self._sessions[session].heard_at = self._clock()

    def disconnected(self, session: str) -> None:
        """The connection ended. The process may live on: what it has is quarantined."""
        with self._turns:
            self._orphan(session)

    def gone(self, session: str) -> None:
        """The process is dead: what it had is free."""
        with self._turns:
            self._orphan(session)
            if session in self._sessions:
                self._sessions[session].move(SessionState.GONE)
                self._memory.process_gone(session)
                self._forget(session)

    def _orphan(self, name: str) -> None:
        session = self._sessions.get(name)
        if session is None or session.state is not SessionState.LIVE:
            return
        session.orphan()
        self._memory.orphan(name)
        if not self._memory.held_by(name):
            self._forget(name)

    def _forget(self, name: str) -> None:
        del self._sessions[name]
        self._ended.add(name)
        self._idle_since = self._clock()
        if not self._sessions:
            self._memory.trim(0)  # nobody is here to reuse what is pooled, and others may need the machine's memory

    def _session(self, name: str) -> Session:
        session = self._sessions.get(name)
        if session is None:
            raise SessionEnded(session=name)
        return session

    def idle(self) -> None:
        """Housekeeping when nothing happens: expired grants return."""
        with self._turns:
            self._memory.governor.collect_expired()

    # --- truth ----------------------------------------------------------------------------------------------------

    def _idle_s(self) -> float:
        """Seconds since the last session went; 0 while there is one."""
        return 0.0 if self._sessions else self._clock() - self._idle_since

    def statistics(self) -> DeviceStatistics:
        """All figures of one moment."""
        with self._turns.looking:
            return self._statistics()

    def audit(self) -> DeviceStatistics:
        """The same, after checking that everything sums, and that the hardware holds what was created.

        Raises:
            InvariantBroken: it does not.
        """
        with self._turns.looking:
            audit_memory(self._memory, self._driver)
            return self._statistics()

    def _statistics(self) -> DeviceStatistics:
        memory, operations = self._memory, self._operations
        return DeviceStatistics(
            device=self._settings.name,
            epoch=self._settings.epoch,
            capacity_bytes=memory.capacity_bytes,
            accounts={str(account): size_bytes for account, size_bytes in memory.ledger.balances().items()},
            handles={state.value: memory.pool.bytes_in(state) for state in HandleState},
            reserved_bytes=memory.reserved_bytes,
            peak_reserved_bytes=self._peak_reserved_bytes,
            committed_bytes=memory.committed_bytes,
            peak_committed_bytes=self._peak_committed_bytes,
            sessions={name: session.state.value for name, session in self._sessions.items()},
            pids={name: session.pid for name, session in self._sessions.items()},
            silent_s={name: self._clock() - session.heard_at for name, session in self._sessions.items()},
            ended_names=len(self._ended),
            idle_s=self._idle_s(),
            open_requests=len(memory.reservations),
            requests=operations.requests,
            frames=self._frames,
            stored_replies=sum(session.stored_replies for session in self._sessions.values()),
            refusals=dict(operations.refusals),
            driver_calls=dict(self._driver.calls()),
        )

    def _note_peaks(self) -> None:
        self._peak_reserved_bytes = max(self._peak_reserved_bytes, self._memory.reserved_bytes)
        self._peak_committed_bytes = max(self._peak_committed_bytes, self._memory.committed_bytes)

    def close_if_idle(self, seconds: float) -> bool:
        """Close, if there was no session for so long; whether it was. Whoever says hello afterwards is refused."""
        with self._turns:
            if self._sessions or self._idle_s() < seconds:
                return False
            self._leaving = True
            return True

    def close(self) -> None:
        """End every session, as if its connection had ended, and give the pool back to the driver."""
        with self._turns:
            self._leaving = True
            for name in tuple(self._sessions):
                self._orphan(name)
            self._memory.trim(0)


def export_all(driver: Driver, handles: tuple[PhysicalHandle, ...], total: int) -> Descriptors:
    """A descriptor a handle, all or none; they are a piece of `total`."""
    with ExitStack() as opened:
        fds = []
        for handle in handles:
            fds.append(driver.export_fd(handle))
            opened.callback(os.close, fds[-1])
        opened.pop_all()
    return Descriptors(tuple(fds), tuple(handle.size_bytes for handle in handles), total)
