"""A device in this very process: the same verbs without Ray, sockets or descriptors.

    with kvcluster.open_device("host", memory="256MiB") as device:
        memory = device.open(geometry, max_tokens=131_072)
        memory.commit(200, memory.grant(200))

Frames are encoded and decoded as on the wire; only the way is shorter. Both halves of a commit run here on one
driver, so the client borrows the device's handles instead of importing them. Nobody can say that this process is
dead while it lives: what it could not unmap stays quarantined until it ends.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

from kvcluster.driver.host import open_host_driver
from kvcluster.driver.protocol import Driver, PhysicalHandle
from kvcluster.geometry.layout import Layout
from kvcluster.geometry.model import KvGeometry
from kvcluster.ids import new_session
from kvcluster.services.device import DeviceService, DeviceSettings
from kvcluster.services.device_memory import MemorySettings
from kvcluster.services.port import DevicePort
from kvcluster.services.sequence import SequenceMemory, SequenceSpec
from kvcluster.services.statistics import DeviceStatistics
from kvcluster.units import KIB, MIB, parse_bytes
from kvcluster.wire.messages import Hello


def pool_bytes_for(capacity_bytes: int) -> int:
    """How much of a device may stay pooled: the smaller of 64 MiB and 2 %."""
    return min(64 * MIB, capacity_bytes // 50)


def open_device(name: str = "host", *, memory: str | int = "256MiB", granule: str | int = 64 * KIB) -> LocalDevice:
    """A device of `memory` bytes in this process, a whole number of granules. `name` is "host".

    Raises:
        ValueError: no such device, a size that is not one, or a memory that is not whole granules. Nothing is open.
    """
    if name != "host":
        raise ValueError(f"{name!r} is no device that can be opened here: use 'host'")
    capacity_bytes, granule_bytes = parse_bytes(memory), parse_bytes(granule)
    driver = open_host_driver(granule_bytes=granule_bytes, capacity_bytes=capacity_bytes)
    settings = MemorySettings(capacity_bytes, granule_bytes, pool_bytes_for(capacity_bytes))
    return open_local_device(driver, settings, name=name)


def open_local_device(
    driver: Driver, memory: MemorySettings, *, name: str = "host", clock: Callable[[], float] = time.monotonic
) -> LocalDevice:
    """A device over a driver of the caller's, for tests that make it fail."""
    return LocalDevice(driver, DeviceService(driver, DeviceSettings(name, memory), clock=clock))


class LocalDevice:
    """A device service and its clients in one process. Not for several threads at a time."""

    def __init__(self, driver: Driver, service: DeviceService) -> None:
        self.driver = driver
        self.service = service
        self._ports: list[DevicePort] = []

    @property
    def port(self) -> DevicePort:
        """The first client of this device; made when it is asked for."""
        return self._ports[0] if self._ports else self.open_port()

    def open_port(self) -> DevicePort:
        """Another client, with a session of its own."""
        session = new_session()
        welcome = self.service.hello(Hello(session=session), pid=os.getpid())
        port = DevicePort(session, welcome, self.driver, _Direct(self.service, session))
        self._ports.append(port)
        return port

    def open(self, geometry: KvGeometry, *, max_tokens: int, layout: Layout = Layout.TOKEN_MAJOR) -> SequenceMemory:
        """A new request's memory: an address for `max_tokens` tokens that never moves, and no bytes yet."""
        return self.port.memory(SequenceSpec(geometry, layout, max_tokens))

    def statistics(self) -> DeviceStatistics:
        return self.service.statistics()

    def audit(self) -> DeviceStatistics:
        """Raises InvariantBroken if anything does not sum."""
        return self.service.audit()

    def close(self) -> None:
        """Close every memory, end every session, and give the device's own memory back.

        A memory whose ask was never settled is left as it is, and its bytes stay charged.

        Raises:
            Quarantined, DriverError: a memory could not be closed (see `SequenceMemory.close`); all the rest was.
        """
        with ExitStack() as ending:
            ending.callback(self.driver.close)
            ending.callback(self.service.close)
            for port in self._ports:
                ending.callback(port.close)
                for memory in port.memories():
                    if not memory.in_flight:
                        ending.callback(memory.close)
            self._ports.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class _Answered:
    data: bytes

    def ready(self) -> bool:
        return True

    def result(self, timeout_s: float) -> bytes:
        return self.data


class _Direct:
    """The transport of a LocalDevice: a call."""

    def __init__(self, service: DeviceService, session: str) -> None:
        self._service = service
        self._session = session

    def send(self, frame: bytes) -> _Answered:
        return _Answered(self._service.frame(frame))

    def redeem(self, seq: int) -> Sequence[PhysicalHandle]:
        return self._service.handles(self._session, seq)

    def settled(self, handles: Sequence[PhysicalHandle]) -> None:
        """Borrowed, so there is nothing to drop."""

    def close(self) -> None:
        self._service.disconnected(self._session)
