"""Host pages in this very process: the same frames and the same protection, without Ray and sockets.

    with open_pages(geometry, memory="256MiB", dtype=torch.float32) as pages:
        memory = pages.port.memory(SequenceSpec(geometry, Layout.TOKEN_MAJOR, 4_096))

The client has a mapping of its own, for reading but where its tables say, as it would in another process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from kvcluster.driver.linux import duplicate
from kvcluster.geometry.model import KvGeometry
from kvcluster.ids import new_session
from kvcluster.paged.block_pool import BlockPool
from kvcluster.paged.shape import PageShape
from kvcluster.paged.store import attach_store
from kvcluster.services.device_settings import DeviceSettings, MemorySettings
from kvcluster.services.direct import DirectSender
from kvcluster.services.pages.port import PagePort
from kvcluster.services.pages.service import PageService
from kvcluster.services.pages.statistics import PageStatistics
from kvcluster.units import parse_bytes
from kvcluster.wire.socket import Hello

if TYPE_CHECKING:
    import torch


def open_pages(
    geometry: KvGeometry,
    *,
    dtype: torch.dtype,
    memory: str | int = "256MiB",
    block_size: int = 16,
    clock: Callable[[], float] = time.monotonic,
) -> LocalPages:
    """Pages for a model of this geometry, as many as lie in `memory` bytes.

    Raises:
        ValueError: the model's layers differ, or not one block lies in so much. Nothing is open.
        LimitReached, DriverError: the machine has not so much. Nothing is open.
    """
    shape = PageShape.of(geometry, block_size=block_size)
    blocks = parse_bytes(memory) // shape.pitch_bytes
    pool = BlockPool(blocks, block_size, shape.num_layers, shape.num_kv_heads, shape.head_dim, dtype=dtype)
    return LocalPages(pool, page_service(pool, "host-kv", epoch=time.time_ns(), clock=clock))


def page_service(pool: BlockPool, name: str, *, epoch: int, clock: Callable[[], float]) -> PageService:
    """A service of default settings over a pool, which is its own from now on."""
    pitch_bytes = pool.shape.pitch_bytes
    memory = MemorySettings(pool.counts.num_blocks * pitch_bytes, pitch_bytes, 0)
    return PageService(pool, DeviceSettings(name, memory, epoch), clock=clock)


class LocalPages:
    """A page service and its clients in one process. Not for several threads at a time."""

    def __init__(self, pool: BlockPool, service: PageService) -> None:
        self.pool = pool
        self.service = service
        self._ports: list[PagePort] = []

    @property
    def port(self) -> PagePort:
        """The first client; made when it is asked for."""
        return self._ports[0] if self._ports else self.open_port()

    def open_port(self) -> PagePort:
        """Another client, with a session and a mapping of its own.

        Raises:
            LimitReached, DriverError: this process cannot map the pages again. Nothing changed.
        """
        session, pool = new_session(), self.pool
        welcome = self.service.hello(Hello(session=session), pid=os.getpid())
        with ExitStack() as undo:
            undo.callback(self.service.disconnected, session)
            store = attach_store(duplicate(pool.store.descriptor), pool.shape, pool.counts.num_blocks, pool.store.dtype)
            undo.pop_all()
        port = PagePort(session, welcome, store, DirectSender(self.service, session))
        self._ports.append(port)
        return port

    def statistics(self) -> PageStatistics:
        return self.service.statistics()

    def audit(self) -> PageStatistics:
        """The same, after checking that everything sums. Raises InvariantBroken: it does not."""
        return self.service.audit()

    def close(self) -> None:
        """End every session, and give the memory back. Closing twice is once."""
        for port in self._ports:
            port.close()
        self._ports.clear()
        self.service.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
