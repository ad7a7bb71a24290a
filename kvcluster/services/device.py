"""A device actor's work, without Ray: sessions, frames, tickets, pushes, over the memory of one device.

How frames are executed, and what the one lock is for, is in `services.frame_service`. Here is what only a device has:
tickets and their handles, handles created ahead, a capacity that can be measured, and its figures.
"""

from __future__ import annotations

from collections.abc import Callable

from kvcluster.attach.protocol import Descriptors, HandedHandle
from kvcluster.attach.sockets import MAX_DESCRIPTORS
from kvcluster.budget.ledger import FREE
from kvcluster.driver.gate import patient_operation
from kvcluster.driver.protocol import Driver, PhysicalHandle
from kvcluster.ids import ImportKey
from kvcluster.services.audit import audit_memory
from kvcluster.services.device_memory import DeviceMemory
from kvcluster.services.device_settings import DeviceSettings
from kvcluster.services.figures import Moment, Parts, Peaks, statistics_of
from kvcluster.services.frame_service import FrameService
from kvcluster.services.handing import exported
from kvcluster.services.known_blocks import NEVER, KnownBlocks
from kvcluster.services.operations import Operations
from kvcluster.services.progress_page import FILE_BYTES
from kvcluster.services.session_file import NoSessionLog, SessionLog
from kvcluster.services.statistics import DeviceStatistics
from kvcluster.wire.socket import Welcome

__all__ = ["DeviceService", "DeviceSettings"]

ARRIVAL_BITS = 32  # arrival numbers of a later incarnation are above all of an earlier one
NO_LOG = NoSessionLog()


class DeviceService(FrameService):
    """One device. Its methods may be called from any thread."""

    def __init__(
        self,
        driver: Driver,
        settings: DeviceSettings,
        *,
        clock: Callable[[], float],
        log: SessionLog = NO_LOG,
    ) -> None:
        self._driver = driver
        first_arrival = 1 + ((settings.incarnation - 1) << ARRIVAL_BITS)
        self._memory = DeviceMemory(driver, settings.memory, clock=clock, first_arrival=first_arrival)
        self._operations = Operations(self._memory)
        self._peaks = Peaks()
        super().__init__(self._memory, self._operations, settings, welcome=self._welcome, clock=clock, log=log)

    def _executed_one(self) -> None:
        self._memory.registering.settle()
        self._peaks.note(self._memory)

    def _welcome(self) -> Welcome:
        settings, books = self._settings, self._memory.books
        return Welcome(
            device=settings.name,
            epoch=settings.epoch,
            granule_bytes=books.granule_bytes,
            capacity_bytes=books.ledger.capacity_bytes,
            lease_s=settings.lease_s,
            heartbeat_s=settings.heartbeat_s,
        )

    # --- tickets: attach.server.SessionEvents -----------------------------------------------------------------------

    @patient_operation
    def redeem(self, session: str, seq: int, start: int = 0, known: frozenset[ImportKey] = frozenset()) -> Descriptors:
        """The handles that frame `seq` hands over, a packet's from `start` on; descriptors for those not `known`.

        The receiver closes them. Each piece asks for the ticket anew: a window that was released meanwhile may be
        somebody else's by now. Frame 0, which there never is, hands over the session's progress page.

        Raises:
            SessionEnded, NotAllowed: see `Session.ticket`.
            LimitReached, DriverError: a descriptor could not be made. None is left open.
        """
        with self._turns:
            if not seq:
                return self._page(session)
            client = self._clients.find(session)
            handles = client.ticket(seq)
            piece = handles[start : start + MAX_DESCRIPTORS]
            descriptors = exported(self._driver, piece, known, len(handles))
            client.knows(key.handle for key in known)
            client.knows(handle.identity for handle in piece)
            return descriptors

    def _page(self, session: str) -> Descriptors:
        page = self._memory.keeping.page(self._clients.find_live(session).name)
        return Descriptors((HandedHandle(ImportKey(0, 0), FILE_BYTES, page),), 1)

    def handles(self, session: str, seq: int) -> tuple[PhysicalHandle, ...]:
        """The same for a client in this very process, which borrows them. Raises as it does."""
        with self._turns:
            return tuple([handle.physical for handle in self._clients.find(session).ticket(seq)])

    # --- memory ---------------------------------------------------------------------------------------------------

    @patient_operation
    def fill(self) -> bool:
        """Create a few handles ahead, so that growth need not, or give some back; whether there is more to do.

        Without a client all that is pooled goes, a part each time; so does, with one, what is more than should be.
        """
        with self._act():
            if self._clients.is_leaving:
                return False
            return self._memory.fill() if self._clients.sessions else self._memory.shrink()

    @patient_operation
    def measure(self, utilization: float) -> int:
        """Fit the capacity to what the hardware has now: see `Books.measure`; returns it."""
        with self._act():
            self._memory.books.measure(utilization)
            self._memory.registering.settle()
            return self._memory.books.ledger.capacity_bytes

    # --- truth ----------------------------------------------------------------------------------------------------

    def statistics(self) -> DeviceStatistics:
        """All figures of one moment."""
        with self._turns.looking:
            return self._statistics()

    def known_since(self, epoch: int, number: int) -> KnownBlocks:
        """What is known behind event `number` of incarnation `epoch`; of another one, all that is known now.

        A step a block that changed, and no more than one a block that is known: it is asked for all the time.
        """
        with self._turns.looking:
            books = self._memory.books
            news = books.index.log.since(number if epoch == self._settings.epoch else NEVER)
            evictable = books.evictable_bytes("")
            free_bytes = books.ledger.balance(FREE) + evictable.own_bytes + evictable.others_bytes
            return KnownBlocks(self._settings.epoch, news, free_bytes)

    @patient_operation
    def audit(self) -> DeviceStatistics:
        """The same, after checking that everything sums, and that the hardware holds what was created.

        Grants whose time is over return first, in a turn of its own, unless the device is broken.

        Raises:
            InvariantBroken: it does not.
        """
        if not self._turns.are_over:
            self.collect_expired()
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

    @patient_operation
    def close(self) -> None:
        """End every session, as if its connection had ended, and give what nobody has back to the driver."""
        with self._turns:
            self._clients.leave()
            self._memory.keeping.close()
            self._memory.books.evict_all()
            self._memory.trim(0)
