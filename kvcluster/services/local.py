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
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Self

from kvcluster.budget.quotas import Quotas
from kvcluster.driver.cuda import open_cuda_driver
from kvcluster.driver.gate import operation
from kvcluster.driver.host import HostDriver, open_host_driver
from kvcluster.driver.protocol import Driver
from kvcluster.geometry.layout import Layout
from kvcluster.geometry.model import KvGeometry
from kvcluster.ids import new_session
from kvcluster.services.batch_memory import BatchMemory
from kvcluster.services.device import DeviceService
from kvcluster.services.device_settings import (
    DeviceSettings,
    MemorySettings,
    bulk_bytes_for,
    pool_bytes_for,
    what_is_there,
)
from kvcluster.services.direct import DirectTransport
from kvcluster.services.port import DevicePort
from kvcluster.services.sequence import SequenceMemory, SequenceSpec
from kvcluster.services.statistics import DeviceStatistics
from kvcluster.units import KIB, parse_bytes
from kvcluster.wire.socket import Hello

_GRANULE_BYTES = 64 * KIB  # of a host device


def open_device(
    name: str = "host",
    *,
    memory: str | int = "256MiB",
    granule: str | int | None = None,
    utilization: float = 0.9,
    quotas: Mapping[str, str | int] | None = None,
) -> LocalDevice:
    """A device of `memory` bytes in this process, a whole number of granules: "host", "cuda:0", or a GPU's UUID.

    A GPU's device has at most `utilization` of what is free on it now. A granule is 64 KiB, on a GPU what its driver
    says. `quotas` are by tenant: the most that it may have of the device; one that is not named may have all.

    Raises:
        ValueError: no such name, a size that is not one, or a memory that is not whole granules. Nothing is open.
        DeviceMissing, DriverError: CUDA or the GPU is not there, or does not work. Nothing is open.
    """
    memory_bytes, granule_bytes = parse_bytes(memory), None if granule is None else parse_bytes(granule)
    bounds = Quotas({tenant: parse_bytes(size) for tenant, size in (quotas or {}).items()})
    if name == "host":
        return _on_host(memory_bytes, _GRANULE_BYTES if granule_bytes is None else granule_bytes, bounds)
    if name.startswith(("cuda", "GPU-")):
        return _on_gpu(name, memory_bytes, granule_bytes, utilization, bounds)
    raise ValueError(f"{name!r} is no device that can be opened here: use 'host', 'cuda:0' or 'GPU-' and a UUID")


def _on_host(capacity_bytes: int, granule_bytes: int, quotas: Quotas) -> LocalDevice:
    driver = open_host_driver(granule_bytes=granule_bytes, capacity_bytes=capacity_bytes)
    pool_bytes = pool_bytes_for(capacity_bytes)
    return open_local_device(driver, MemorySettings(capacity_bytes, granule_bytes, pool_bytes, quotas=quotas))


def _on_gpu(name: str, asked_bytes: int, granule_bytes: int | None, utilization: float, quotas: Quotas) -> LocalDevice:
    if not 0 < utilization <= 1:
        raise ValueError(f"a utilization lies above 0 and is at most 1, and {utilization} does not")
    with ExitStack() as undo:
        driver = open_cuda_driver(name)
        undo.callback(driver.close)
        granule = driver.granularity_bytes if granule_bytes is None else granule_bytes
        if granule % driver.granularity_bytes or not granule:
            raise ValueError(f"a granule of {name} is a multiple of {driver.granularity_bytes} bytes, not {granule}")
        pool_bytes, bulk_bytes = pool_bytes_for(asked_bytes), bulk_bytes_for(granule)
        asked = MemorySettings(asked_bytes, granule, pool_bytes, quotas=quotas, bulk_bytes=bulk_bytes)
        free_bytes = driver.memory_info().free_bytes
        memory = what_is_there(asked, device=name, free_bytes=free_bytes, utilization=utilization)
        undo.pop_all()
    return open_local_device(driver, memory, name=name)


def open_local_device(
    driver: Driver, memory: MemorySettings, *, name: str = "host", clock: Callable[[], float] = time.monotonic
) -> LocalDevice:
    """A device over a driver of the caller's, for tests that make it fail."""
    epoch = time.time_ns()  # no two devices have the same one: a prefix of another device is told by it
    return LocalDevice(driver, DeviceService(driver, DeviceSettings(name, memory, epoch), clock=clock))


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
        port = DevicePort(session, welcome, self.driver, DirectTransport(self.service, session))
        self._ports.append(port)
        return port

    def open(
        self,
        geometry: KvGeometry,
        *,
        max_tokens: int,
        layout: Layout = Layout.TOKEN_MAJOR,
        tenant: str = "",
        shareable_tokens: int = 0,
        cache_root: bytes = b"",
    ) -> SequenceMemory:
        """A new request's memory: an address for `max_tokens` tokens that never moves, and no bytes yet.

        What tenants, shareable tokens and a cache root are, and what else can be said, is in `SequenceSpec`.
        """
        spec = SequenceSpec(
            geometry, layout, max_tokens, tenant=tenant, shareable_tokens=shareable_tokens, cache_root=cache_root
        )
        return self.port.memory(spec)

    def open_batch(self, geometry: KvGeometry, *, rows: int, max_tokens: int, tenant: str = "") -> BatchMemory:
        """The memory of a batch of new requests: see `DevicePort.open_batch`."""
        return self.port.open_batch(geometry, rows=rows, max_tokens=max_tokens, tenant=tenant)

    def working(self) -> AbstractContextManager[None]:
        """The block computes on this device's memory: fences and releases of other threads wait for it.

        On a GPU it says nothing: the streams know themselves.
        """
        return self.driver.working() if isinstance(self.driver, HostDriver) else nullcontext()

    @operation
    def fill(self) -> bool:
        """Create a few handles ahead, so that a growth need not; True while there is more to do.

        Raises:
            DriverError: a graph is being captured. Nothing changed.
        """
        return self.service.fill()

    def statistics(self) -> DeviceStatistics:
        return self.service.statistics()

    @operation
    def audit(self) -> DeviceStatistics:
        """The same, after checking that everything sums.

        Raises:
            InvariantBroken: it does not.
            DriverError: a graph is being captured.
        """
        return self.service.audit()

    @operation
    def close(self) -> None:
        """Close every memory, end every session, and give the device's own memory back.

        A memory whose ask was never settled is left as it is, and its bytes stay charged.

        Raises:
            Quarantined, DriverError: a memory could not be closed (see `SequenceMemory.close`); all the rest was.
            DriverError (EBUSY): a graph is being captured. Nothing changed.
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
