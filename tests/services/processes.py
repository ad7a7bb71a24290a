"""A device in this process, served over the attach socket, and clients of it in processes of their own. No Ray."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from kvcluster.attach.server import open_attach_server
from kvcluster.driver.cuda import open_cuda_driver
from kvcluster.driver.host import open_host_driver
from kvcluster.driver.protocol import Driver
from kvcluster.services.device import DeviceService, DeviceSettings
from kvcluster.services.device_memory import MemorySettings
from kvcluster.services.statistics import DeviceStatistics
from kvcluster.testing.stand_in_cuda import environment, fresh_stand_in
from tests.nursery import NO_ENV, Nursery
from tests.piped import TIMEOUT_S, Piped

GRANULE = 4096


class Host:
    """The device, on the host or on a GPU, which children find by `env`; they come from the nursery, if there is one.

    `close` ends its children first.
    """

    def __init__(
        self,
        granules: int = 1024,
        *,
        nursery: Nursery | None = None,
        gpu: str = "",
        env: Mapping[str, str] = NO_ENV,
        grace_s: float = 0.0,
    ) -> None:
        capacity_bytes = granules * GRANULE
        self._nursery, self._gpu, self._env = nursery, gpu, env
        self.driver: Driver = (
            open_cuda_driver(gpu) if gpu else open_host_driver(granule_bytes=GRANULE, capacity_bytes=capacity_bytes)
        )
        memory = MemorySettings(capacity_bytes, GRANULE, pool_bytes=64 * GRANULE, grace_s=grace_s)
        self.service = DeviceService(self.driver, DeviceSettings("host", memory), clock=time.monotonic)
        self.server = open_attach_server("host", self.service)
        self._capacity_bytes = capacity_bytes
        self._thread = threading.Thread(target=self.server.serve)
        self._thread.start()
        self._children: list[Piped] = []

    def child(self, *, failpoints: str = "") -> Piped:
        """A new client; a failpoint that is armed in it may kill it."""
        assert self._nursery is not None
        words = (self.server.address.replace("\0", "@"), str(self._capacity_bytes), self._gpu)
        self._children.append(Piped(self._nursery.born(*words, env=self._env, failpoints=failpoints)))
        self._children[-1].answered = self.frame
        assert self._children[-1].answer() == "ready"
        return self._children[-1]

    def frame(self, data: bytes) -> bytes:
        reply = self.service.frame(data)
        if self.service.has_pushes:
            self.server.nudge()
        return reply

    def audit(self) -> DeviceStatistics:
        return self.service.audit()

    def granules(self, account: str) -> int:
        """What an account has; `requests` is all of them."""
        accounts = self.audit().accounts
        prefix = "request/" if account == "requests" else account
        return sum(size for name, size in accounts.items() if name.startswith(prefix)) // GRANULE

    @property
    def held_granules(self) -> int:
        """What the kernel has allocated to the device's memory (st_blocks)."""
        return self.driver.memory_info().held_bytes // GRANULE

    def eventually(self, holds: Callable[[], bool], what: str) -> None:
        deadline, pause = time.monotonic() + TIMEOUT_S, threading.Event()
        while not holds():
            assert time.monotonic() < deadline, f"never: {what}"
            pause.wait(0.005)

    def close(self) -> None:
        for child in self._children:
            child.end()
        self.eventually(lambda: not self.service.statistics().sessions, "the kernel has said that all are dead")
        self.server.close()
        self._thread.join(TIMEOUT_S)
        self.service.close()
        self.driver.close()


@contextmanager
def opened_host(kind: str, nursery: Nursery) -> Iterator[Host]:
    """A device of the "host", or with "cuda" a GPU's of a stand-in whose granule is as small."""
    with ExitStack() as opened:
        if kind == "cuda":
            opened.enter_context(fresh_stand_in(GRANULE=GRANULE))
            host = Host(nursery=nursery, gpu="cuda:0", env=environment(GRANULE=GRANULE))
        else:
            host = Host(nursery=nursery)
        opened.callback(host.close)
        yield host
