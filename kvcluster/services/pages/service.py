"""A host actor's work, without Ray: sessions and frames over host pages, and the descriptor of their memory.

How frames are executed, and what the one lock is for, is in `services.frame_service`. A client redeems once, whatever
frame it names: it gets the whole pool's descriptor, and maps it for reading.
"""

from __future__ import annotations

from collections.abc import Callable

from kvcluster.attach.protocol import Descriptors, HandedHandle
from kvcluster.budget.ledger import FREE, RETAINED
from kvcluster.driver.gate import patient_operation
from kvcluster.driver.linux import duplicate
from kvcluster.failpoints import Failpoint, reach
from kvcluster.ids import ImportKey
from kvcluster.paged.block_pool import BlockPool
from kvcluster.services.device_settings import DeviceSettings
from kvcluster.services.frame_service import FrameService
from kvcluster.services.pages.audit import audit_pages
from kvcluster.services.pages.memory import PageMemory
from kvcluster.services.pages.operations import PageOperations
from kvcluster.services.pages.statistics import PageStatistics
from kvcluster.services.session_file import NoSessionLog, SessionLog
from kvcluster.wire.socket import Welcome

POOL = ImportKey(0, 0)
NO_LOG = NoSessionLog()


class PageService(FrameService):
    """One pool, which is the service's from now on. Its methods may be called from any thread."""

    def __init__(
        self, pool: BlockPool, settings: DeviceSettings, *, clock: Callable[[], float], log: SessionLog = NO_LOG
    ) -> None:
        self._pool = pool
        self._memory = PageMemory(pool, settings.memory, clock=clock)
        self._operations = PageOperations(self._memory)
        self._peak_used_bytes = 0
        super().__init__(self._memory, self._operations, settings, welcome=self._welcome, clock=clock, log=log)

    def _welcome(self) -> Welcome:
        settings, shape = self._settings, self._pool.shape
        return Welcome(
            device=settings.name,
            epoch=settings.epoch,
            granule_bytes=shape.pitch_bytes,
            capacity_bytes=self._memory.books.ledger.capacity_bytes,
            lease_s=settings.lease_s,
            heartbeat_s=settings.heartbeat_s,
            block_tokens=shape.block_size,
            blocks=self._pool.counts.num_blocks,
        )

    def _executed_one(self) -> None:
        ledger = self._memory.books.ledger
        idle_bytes = ledger.balance(FREE) + ledger.total(RETAINED) + ledger.total("granted")
        self._peak_used_bytes = max(self._peak_used_bytes, ledger.capacity_bytes - idle_bytes)

    def redeem(self, session: str, seq: int, start: int = 0, known: frozenset[ImportKey] = frozenset()) -> Descriptors:
        """The descriptor of the pool's memory. The receiver closes it.

        Raises:
            SessionEnded: the session is not known, or not live.
            DriverError, LimitReached: no descriptor could be made.
        """
        with self._turns:
            self._clients.find_live(session)
            reach(Failpoint.OWNER_HANDING)
            store = self._pool.store
            return Descriptors((HandedHandle(POOL, store.size_bytes, duplicate(store.descriptor)),), 1)

    def statistics(self) -> PageStatistics:
        """All figures of one moment."""
        with self._turns.looking:
            return self._statistics()

    @patient_operation
    def audit(self) -> PageStatistics:
        """The same, after checking that everything sums.

        Raises:
            InvariantBroken: it does not.
        """
        if not self._turns.are_over:
            self.collect_expired()
        with self._turns.looking:
            audit_pages(self._memory)
            return self._statistics()

    def _statistics(self) -> PageStatistics:
        memory, books, clients, now_s = self._memory, self._memory.books, self._clients, self._clock()
        return PageStatistics(
            device=self._settings.name,
            epoch=self._settings.epoch,
            blocks=self._pool.counts.num_blocks,
            free_blocks=self._pool.counts.free,
            block_tokens=self._pool.shape.block_size,
            capacity_bytes=books.ledger.capacity_bytes,
            peak_used_bytes=self._peak_used_bytes,
            accounts={str(account): size_bytes for account, size_bytes in books.ledger.balances().items()},
            tenants=dict(books.ledger.tenants()),
            sessions={name: session.state.value for name, session in clients.sessions.items()},
            pids={name: session.pid for name, session in clients.sessions.items()},
            silent_s={name: now_s - session.heard_at for name, session in clients.sessions.items()},
            quarantined=books.quarantined_by_session(),
            open_requests=len(memory.sequences),
            running_requests=memory.queue.running,
            requests=self._operations.requests,
            frames=self._frames,
            refusals=dict(self._operations.refusals),
            listed_blocks=len(books.index),
            lookups=memory.lookups,
            asked_tokens=memory.asked_tokens,
            found_tokens=memory.found_tokens,
            evictions=books.evictions,
            idle_s=clients.idle_s,
        )

    @patient_operation
    def close(self) -> None:
        """End every session, as if its connection had ended, and give the memory back."""
        with self._turns:
            self._clients.leave()
            self._memory.books.evict_all()
        self._pool.close()
