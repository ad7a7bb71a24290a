"""A device's statistics, put together from what its parts count. Changes nothing; called under the device's lock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvcluster.driver.protocol import Driver
from kvcluster.memory.handle import HandleState
from kvcluster.memory.shared_prefix import SharedPrefix
from kvcluster.services.device_memory import DeviceMemory
from kvcluster.services.operations import Operations
from kvcluster.services.sessions import Session
from kvcluster.services.statistics import DeviceStatistics, PrefixStatistics


@dataclass(slots=True)
class Peaks:
    """The most at one moment, in bytes."""

    reserved_bytes: int = 0
    committed_bytes: int = 0

    def note(self, memory: DeviceMemory) -> None:
        self.reserved_bytes = max(self.reserved_bytes, memory.requests.reserved_bytes)
        self.committed_bytes = max(self.committed_bytes, memory.committed_bytes)


@dataclass(frozen=True, slots=True)
class Parts:
    """What a device is made of, as far as it counts anything."""

    driver: Driver
    memory: DeviceMemory
    operations: Operations
    sessions: Mapping[str, Session]
    peaks: Peaks


@dataclass(frozen=True, slots=True)
class Moment:
    """What only the service itself knows, now."""

    device: str
    epoch: int
    now_s: float
    idle_s: float
    ended_names: int
    frames: int


def statistics_of(parts: Parts, moment: Moment) -> DeviceStatistics:
    """All figures of one moment."""
    memory, operations, sessions = parts.memory, parts.operations, parts.sessions
    books, finding = memory.books, memory.finder.figures
    return DeviceStatistics(
        device=moment.device,
        epoch=moment.epoch,
        capacity_bytes=books.ledger.capacity_bytes,
        accounts={str(account): size_bytes for account, size_bytes in books.ledger.balances().items()},
        handles={state.value: books.pool.bytes_in(state) for state in HandleState},
        reserved_bytes=memory.requests.reserved_bytes,
        peak_reserved_bytes=parts.peaks.reserved_bytes,
        committed_bytes=memory.committed_bytes,
        peak_committed_bytes=parts.peaks.committed_bytes,
        sessions={name: session.state.value for name, session in sessions.items()},
        pids={name: session.pid for name, session in sessions.items()},
        silent_s={name: moment.now_s - session.heard_at for name, session in sessions.items()},
        quarantined=books.quarantine.held_by_session(),
        ended_names=moment.ended_names,
        idle_s=moment.idle_s,
        open_requests=len(memory.requests),
        running_requests=memory.queue.running,
        requests=operations.requests,
        frames=moment.frames,
        stored_replies=sum(session.stored_replies for session in sessions.values()),
        refusals=dict(operations.refusals),
        sharing_refusals=dict(operations.sharing_refusals),
        prefixes={prefix.number: _of_prefix(prefix) for prefix in books.prefixes},
        retained_bytes=books.ledger.total("retained"),
        listed_prefixes=len(books.index),
        lookups=finding.lookups,
        asked_tokens=finding.asked_tokens,
        found_tokens=finding.found_tokens,
        evictions=books.evictions,
        created_ahead=books.pool.created_ahead,
        tenants=dict(books.ledger.tenants()),
        driver_calls=dict(parts.driver.calls()),
        kept_bytes=memory.keeping.kept_bytes,
    )


def _of_prefix(prefix: SharedPrefix) -> PrefixStatistics:
    return PrefixStatistics(
        tokens=prefix.extent.tokens,
        size_bytes=prefix.size_bytes,
        state=prefix.state.value,
        users=len(prefix.users),
        pins=len(prefix.pins),
    )
