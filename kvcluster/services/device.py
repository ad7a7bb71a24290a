"""A device actor's work, without Ray: sessions, frames, tickets, pushes, over the memory of one device.

One lock: a frame, a socket event and a statistics call each hold it for their whole duration, and nothing waits for
a client under it. After an act that broke off in the middle nothing is executed any more (`services.turns`).
Whatever may call the driver is a patient operation (`driver.passages`), from before the lock: while a graph is captured
in this process it waits, holding nothing, and is never refused: it comes unasked, or from clients that know of no
capture. Only the capturing thread itself is (DriverError, EBUSY; nothing changed): it would wait for itself.
Frames come from Ray or from a LocalDevice; hello, redemption and the end of a client come from the attach socket
(`attach.server.SessionEvents`). Who is a client, and how one ends, is in `services.clients`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kvcluster.attach.protocol import Descriptors
from kvcluster.attach.sockets import MAX_DESCRIPTORS
from kvcluster.driver.gate import patient_operation
from kvcluster.driver.protocol import Driver, PhysicalHandle
from kvcluster.errors import InvariantBroken, KvClusterError, StaleEpoch
from kvcluster.failpoints import Failpoint, reach
from kvcluster.ids import ImportKey, RequestId
from kvcluster.services.audit import audit_memory
from kvcluster.services.clients import Clients
from kvcluster.services.device_memory import DeviceMemory
from kvcluster.services.device_settings import DeviceSettings
from kvcluster.services.figures import Moment, Parts, Peaks, statistics_of
from kvcluster.services.handing import exported, settled
from kvcluster.services.operations import Operations
from kvcluster.services.sessions import Session
from kvcluster.services.statistics import DeviceStatistics
from kvcluster.services.tickets import Share
from kvcluster.services.turns import Turns
from kvcluster.services.work import Work
from kvcluster.wire import messages as wire
from kvcluster.wire.codec import decode_frame, encode, groups
from kvcluster.wire.faults import fault_of

__all__ = ["DeviceService", "DeviceSettings"]


class DeviceService:
    """One device. Its methods may be called from any thread."""

    def __init__(self, driver: Driver, settings: DeviceSettings, *, clock: Callable[[], float]) -> None:
        self._driver = driver
        self._settings = settings
        self._clock = clock
        self._turns = Turns()
        self._memory = DeviceMemory(driver, settings.memory, clock=clock)
        self._clients = Clients(self._memory, settings, clock=clock)
        self._operations = Operations(self._memory)
        self._peaks = Peaks()
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
        frame = decode_frame(data)
        with self._act():
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
        return self._clients.find(frame.session)

    def _executed(self, frame: wire.Frame) -> bytes:
        try:
            return self._execute(frame)
        except KvClusterError as stray:  # refusals are results: this one came after something was kept
            raise InvariantBroken(sentence=f"a frame broke off: {type(stray).__name__}: {stray}") from stray

    def _execute(self, frame: wire.Frame) -> bytes:
        session = self._clients.find(frame.session)
        shares: list[Share] = []
        results: list[wire.GroupResult] = []
        runs_left = self._settings.most_runs
        for ops in groups(frame):
            request = RequestId(frame.session, ops[0].request.number, ops[0].request.generation)
            result, work = self._operations.perform(request, ops, Work(runs_left, session.known))
            results.append(result)
            runs_left -= work.runs_named
            shares += settled(session, request, work)
        reply = encode(self._reply(frame, results=tuple(results)))
        session.store(frame.seq, reply, shares)
        self._frames += 1
        self._peaks.note(self._memory)
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
            return self._clients.hello(hello, pid=pid)

    @patient_operation
    def redeem(self, session: str, seq: int, start: int = 0, known: frozenset[ImportKey] = frozenset()) -> Descriptors:
        """The handles that frame `seq` hands over, a packet's from `start` on; descriptors for those not `known`.

        The receiver closes them. Each piece asks for the ticket anew: a window that was released meanwhile may be
        somebody else's by now.

        Raises:
            SessionEnded, NotAllowed: see `Session.ticket`.
            LimitReached, DriverError: a descriptor could not be made. None is left open.
        """
        with self._turns:
            client = self._clients.find(session)
            handles = client.ticket(seq)
            piece = handles[start : start + MAX_DESCRIPTORS]
            descriptors = exported(self._driver, piece, known, len(handles))
            client.knows(key.handle for key in known)
            client.knows(handle.identity for handle in piece)
            return descriptors

    def handles(self, session: str, seq: int) -> tuple[PhysicalHandle, ...]:
        """The same for a client in this very process, which borrows them. Raises as it does."""
        with self._turns:
            return tuple([handle.physical for handle in self._clients.find(session).ticket(seq)])

    def heartbeat(self, session: str) -> None:
        with self._turns:
            self._clients.heard(session)

    @patient_operation
    def disconnected(self, session: str) -> None:
        """The connection ended. The process may live on: what it has is quarantined."""
        with self._act():
            self._clients.disconnected(session)

    @patient_operation
    def gone(self, session: str) -> None:
        """The process is dead: what it had is free."""
        with self._act():
            self._clients.gone(session)

    @patient_operation
    def idle(self) -> None:
        """Housekeeping when nothing happens: expired grants return."""
        with self._turns:
            self._memory.books.governor.collect_expired()

    # --- pushes ---------------------------------------------------------------------------------------------------

    @property
    def has_pushes(self) -> bool:
        """Whether somebody is to be told something. Takes no lock."""
        return self._clients.pushes.has_any

    def pushes(self, session: str) -> tuple[wire.Push, ...]:
        """What this session is to be told unasked, once; nothing for one that is not known."""
        with self._turns.looking:
            return self._clients.pushes.drain(session)

    def all_pushes(self) -> tuple[tuple[str, wire.Push], ...]:
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

    # --- memory ---------------------------------------------------------------------------------------------------

    @patient_operation
    def fill(self) -> bool:
        """Create a few handles ahead, while there is a client, so that growth need not; whether there is more to do."""
        with self._act():
            return bool(self._clients.sessions) and not self._clients.is_leaving and self._memory.fill()

    @patient_operation
    def measure(self, utilization: float) -> int:
        """Fit the capacity to what the hardware has now: see `Books.measure`; returns it."""
        with self._act():
            return self._memory.books.measure(utilization)

    # --- truth ----------------------------------------------------------------------------------------------------

    def statistics(self) -> DeviceStatistics:
        """All figures of one moment."""
        with self._turns.looking:
            return self._statistics()

    @patient_operation
    def audit(self) -> DeviceStatistics:
        """The same, after checking that everything sums, and that the hardware holds what was created.

        Grants whose time is over return first, in a turn of its own, unless the device is broken.

        Raises:
            InvariantBroken: it does not.
        """
        if not self._turns.are_over:
            self.idle()
        with self._turns.looking:
            audit_memory(self._memory, self._driver)
            return self._statistics()

    def _statistics(self) -> DeviceStatistics:
        moment = Moment(
            device=self._settings.name,
            epoch=self._settings.epoch,
            now_s=self._clock(),
            idle_s=self._clients.idle_s,
            ended_names=self._clients.ended_names,
            frames=self._frames,
        )
        parts = Parts(self._driver, self._memory, self._operations, self._clients.sessions, self._peaks)
        return statistics_of(parts, moment)

    def close_if_idle(self, seconds: float) -> bool:
        """Close, if there was no session for so long; whether it was. Whoever says hello afterwards is refused."""
        with self._turns:
            if self._clients.sessions or self._clients.idle_s < seconds:
                return False
            self._clients.is_leaving = True
            return True

    @patient_operation
    def close(self) -> None:
        """End every session, as if its connection had ended, and give what nobody has back to the driver."""
        with self._turns:
            self._clients.leave()
            self._memory.books.evict_all()
            self._memory.trim(0)
