"""What every owner of memory serves: sessions, frames executed once and answered the same ever after, and pushes.

One lock: a frame, a socket event and a look at the figures each hold it for their whole duration, and nothing waits for
a client under it. After an act that broke off in the middle nothing is executed any more (`services.turns`).
Whatever may call a driver is a patient operation (`driver.passages`), from before the lock: while a graph is captured
in this process it waits, holding nothing, and is never refused: it comes unasked, or from clients that know of no
capture. Only the capturing thread itself is (DriverError, EBUSY; nothing changed): it would wait for itself.

A device (`services.device`) and host pages (`services.pages.service`) are the two owners. Frames come from Ray or from
a device in the same process; hello, redemption and the end of a client come from the attach socket
(`attach.server.SessionEvents`). Who is a client, and how one ends, is in `services.clients`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from kvcluster.attach.protocol import Survivor
from kvcluster.driver.gate import patient_operation
from kvcluster.errors import InvariantBroken, KvClusterError, StaleEpoch
from kvcluster.failpoints import Failpoint, reach
from kvcluster.ids import RequestId
from kvcluster.services.clients import Clients, Owner
from kvcluster.services.device_settings import DeviceSettings
from kvcluster.services.handing import settled
from kvcluster.services.session_file import SessionLog
from kvcluster.services.sessions import Session
from kvcluster.services.tickets import Share
from kvcluster.services.turns import Turns
from kvcluster.services.work import Work
from kvcluster.wire import messages as wire
from kvcluster.wire.codec import Groups, decode_groups, encode
from kvcluster.wire.faults import fault_of
from kvcluster.wire.socket import Hello, Push, Welcome


class Performer(Protocol):
    def perform(self, request: RequestId, ops: Sequence[wire.Operation], work: Work) -> tuple[wire.GroupResult, Work]:
        """One group, whole or not at all: the result, and the work that is kept of it."""


class FrameService:
    """Of one owner. Its methods may be called from any thread."""

    def __init__(
        self,
        owner: Owner,
        performer: Performer,
        settings: DeviceSettings,
        *,
        welcome: Callable[[], Welcome],
        clock: Callable[[], float],
        log: SessionLog,
    ) -> None:
        self._owner = owner
        self._log = log
        self._performer = performer
        self._settings = settings
        self._clock = clock
        self._turns = Turns()
        self._clients = Clients(owner, settings, welcome=welcome, clock=clock, log=log)
        self._frames = 0

    # --- frames ---------------------------------------------------------------------------------------------------

    @patient_operation
    def frame(self, data: bytes) -> bytes:
        """Execute one frame, or answer it as it was answered before.

        Raises:
            BadFrame: not a frame of ours. Nothing was executed.
            InvariantBroken: our bug, of this frame or an earlier one: whatever is sent from now on, this frame again
                included, is not executed. The caller stops the process. So with any other error.
        """
        frame, groups = decode_groups(data)
        with self._turns:
            reply = self._answer(frame, groups)
            self._clients.collect_pushes()
            return reply

    def _answer(self, frame: wire.Frame, groups: Groups) -> bytes:
        try:
            session = self._admitted(frame)
            stored = session.answered(frame.seq, frame.ack)
        except KvClusterError as refusal:
            return encode(self._reply(frame, fault=fault_of(refusal)))
        if stored is None:
            stored = self._executed(frame, groups, session)
        reach(Failpoint.DEVICE_STORED)
        return stored

    def _admitted(self, frame: wire.Frame) -> Session:
        if frame.epoch != self._settings.epoch:
            raise StaleEpoch(sent=frame.epoch, current=self._settings.epoch)
        return self._clients.find(frame.session)

    def _executed(self, frame: wire.Frame, groups: Groups, session: Session) -> bytes:
        try:
            return self._execute(frame, groups, session)
        except KvClusterError as error:  # refusals are results: this one came after something was kept
            raise InvariantBroken(sentence=f"a frame broke off: {type(error).__name__}: {error}") from error

    def _execute(self, frame: wire.Frame, groups: Groups, session: Session) -> bytes:
        shares: list[Share] = []
        results: list[wire.GroupResult] = []
        runs_left = self._settings.most_runs
        for ops in groups:
            request = RequestId(frame.session, ops[0].request.number, ops[0].request.generation)
            result, work = self._performer.perform(request, ops, Work(runs_left, session.known))
            self._owner.weigh(request)
            if type(ops[0]) is wire.Complete and result.fault is None:
                self._clients.given_up(ops[0].given_up, by=session)
            results.append(result)
            runs_left -= work.runs_named
            shares += settled(session, request, work)
        reply = encode(self._reply(frame, results=tuple(results)))
        session.store(frame.seq, reply, shares)
        self._log.note(frame.session, self._owner.mapped_bytes(frame.session))
        self._frames += 1
        self._executed_one()
        return reply

    def _executed_one(self) -> None:
        """For who counts something after each frame."""

    def _reply(
        self, frame: wire.Frame, results: tuple[wire.GroupResult, ...] = (), fault: wire.Fault | None = None
    ) -> wire.Reply:
        epoch = self._settings.epoch
        return wire.Reply(session=frame.session, seq=frame.seq, epoch=epoch, results=results, fault=fault)

    # --- clients: attach.server.SessionEvents, but for redemptions -------------------------------------------------

    @property
    def survivors(self) -> Sequence[Survivor]:
        """Clients of earlier incarnations whose processes lived when this one began."""
        return self._log.survivors

    def hello(self, hello: Hello, *, pid: int) -> Welcome:
        """A client is here, in process `pid`.

        Raises:
            DeviceUnreachable: the owner is leaving: find it again, or make a new one. Nothing changed.
            NotAllowed: there was a session of this name; a name is used once. Nothing changed.
        """
        with self._turns:
            welcome = self._clients.hello(hello, pid=pid)
            reach(Failpoint.OWNER_WELCOMED)
            return welcome

    def heartbeat(self, session: str) -> None:
        with self._turns:
            self._clients.heard(session)

    @patient_operation
    def disconnected(self, session: str) -> None:
        """The connection ended. The process may live on: what it has is quarantined."""
        with self._act():
            reach(Failpoint.OWNER_DISCONNECTED)
            self._clients.disconnected(session)

    @patient_operation
    def gone(self, session: str) -> None:
        """The process is dead: what it had is free."""
        with self._act():
            reach(Failpoint.OWNER_GONE)
            self._clients.gone(session)

    @patient_operation
    def surrendered(self, session: str) -> None:
        """The process has nothing of the session mapped any more, and says so: what it had is free, and it is over."""
        with self._act():
            reach(Failpoint.OWNER_SURRENDERED)
            self._clients.surrendered(session)

    @patient_operation
    def idle(self) -> None:
        """Housekeeping, about once a second: grants whose time is over return, sessions whose leases are over end.

        To call it less often is to grant longer leases: see `services.leases`.
        """
        with self._act():
            self._owner.collect_expired()
            self._clients.expire()

    @patient_operation
    def collect_expired(self) -> None:
        """Of these only the grants."""
        with self._act():
            self._owner.collect_expired()

    def close_if_idle(self, seconds: float) -> bool:
        """Close, if there was no session for so long; whether it was. Whoever says hello afterwards is refused."""
        with self._turns:
            if self._clients.sessions or self._clients.idle_s < seconds:
                return False
            self._clients.is_leaving = True
            return True

    # --- pushes ---------------------------------------------------------------------------------------------------

    @property
    def has_pushes(self) -> bool:
        """Whether somebody is to be told something. Takes no lock."""
        return self._clients.pushes.has_any

    def pushes(self, session: str) -> tuple[Push, ...]:
        """What this session is to be told unasked, once; nothing for one that is not known."""
        with self._turns.looking:
            return self._clients.pushes.drain(session)

    def all_pushes(self) -> tuple[tuple[str, Push], ...]:
        """The same for every session. Takes no lock where there is nothing."""
        if not self._clients.pushes.has_any:
            return ()
        with self._turns.looking:
            return self._clients.pushes.drain_all()

    @contextmanager
    def _act(self) -> Iterator[None]:
        """A turn after which there may be something to tell."""
        with self._turns:
            yield
            self._clients.collect_pushes()
