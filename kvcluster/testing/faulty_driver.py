"""A driver that fails where a test says so, and a log of every call made to it.

Wraps any `Driver`. A call that is made to fail never reaches the wrapped driver, so "failed" and "nothing
happened" are the same thing here, as the protocol promises. Numbers count from 1, over the calls that the protocol
allows to fail, since the plan was set.

    faulty = FaultyDriver(open_host_driver(capacity_bytes=...))
    faulty.follow(failing(3))             # the third call from now on
    faulty.follow(failing_then(3, 1))     # the third, and then the first call after it: its undo
    faulty.follow(failing_every("unmap"))
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from kvcluster.driver.protocol import Access, Driver, Fence, MemoryInfo, PhysicalHandle
from kvcluster.errors import DriverError
from kvcluster.transaction import Progress


@dataclass(frozen=True, slots=True)
class Call:
    """One call as it was made; `number` counts over the driver's life. Export and import have no address."""

    number: int
    name: str
    address: int
    size_bytes: int
    failed: bool


Plan = Callable[[str, Sequence[Call]], bool]
"""Says whether the call of this name fails, given all calls before it since the plan was set."""


def never() -> Plan:
    return lambda name, before: False


def failing(*numbers: int) -> Plan:
    """The calls of these numbers fail."""
    return lambda name, before: len(before) + 1 in numbers


def failing_named(name: str, *numbers: int) -> Plan:
    """Of the calls named `name`, those of these numbers fail."""
    return lambda called, before: called == name and 1 + sum(call.name == name for call in before) in numbers


def failing_every(*names: str) -> Plan:
    """Every call of these names fails."""
    return lambda name, before: name in names


def failing_then(number: int, later: int) -> Plan:
    """The call of this number fails, and of the calls that follow it (its undo) the one numbered `later`."""
    return failing(number, number + later)


class FaultyFence:
    """`inner`, asked only if `ask` lets it be."""

    def __init__(self, inner: Fence, ask: Callable[[], None]) -> None:
        self._inner = inner
        self._ask = ask

    def done(self) -> bool:
        self._ask()
        return self._inner.done()

    def wait(self) -> None:
        self._ask()
        self._inner.wait()


class FaultyDriver:
    """`inner`, with the faults of a plan."""

    def __init__(self, inner: Driver, plan: Plan | None = None) -> None:
        self._inner = inner
        self._plan = plan or never()
        self._log: list[Call] = []
        self._since = 0

    @property
    def inner(self) -> Driver:
        return self._inner

    def follow(self, plan: Plan) -> None:
        """Fail as `plan` says from now on; its numbers begin at 1 again."""
        self._plan = plan
        self._since = len(self._log)

    def log(self) -> tuple[Call, ...]:
        """Every call so far, in order."""
        return tuple(self._log)

    def since_plan(self) -> tuple[Call, ...]:
        """The calls since the plan was set, in order."""
        return tuple(self._log[self._since :])

    @property
    def granularity_bytes(self) -> int:
        return self._inner.granularity_bytes

    @property
    def is_host_memory(self) -> bool:
        return self._inner.is_host_memory

    def reserve(self, size_bytes: int) -> int:
        self._pass("reserve", size_bytes=size_bytes)
        return self._inner.reserve(size_bytes)

    def create(self, size_bytes: int) -> PhysicalHandle:
        self._pass("create", size_bytes=size_bytes)
        return self._inner.create(size_bytes)

    def map(self, address: int, handles: Sequence[PhysicalHandle], done: Progress) -> None:
        """A call a handle, and what comes before the one that fails is mapped."""
        passed, here = [], address
        try:
            for handle in handles:
                self._pass("map", here, handle.size_bytes)
                passed.append(handle)
                here += handle.size_bytes
        except DriverError:
            if passed:
                self._inner.map(address, passed, done)
            raise
        self._inner.map(address, handles, done)

    def set_access(self, address: int, size_bytes: int, access: Access) -> None:
        self._pass("set_access", address, size_bytes)
        self._inner.set_access(address, size_bytes, access)

    def unmap(self, address: int, size_bytes: int) -> None:
        self._pass("unmap", address, size_bytes)
        self._inner.unmap(address, size_bytes)

    def release(self, handle: PhysicalHandle) -> None:
        self._pass("release", size_bytes=handle.size_bytes)
        self._inner.release(handle)

    def free_address(self, address: int, size_bytes: int) -> None:
        self._pass("free_address", address, size_bytes)
        self._inner.free_address(address, size_bytes)

    def seal(self, handle: PhysicalHandle) -> None:
        self._pass("seal", size_bytes=handle.size_bytes)
        self._inner.seal(handle)

    def export_fd(self, handle: PhysicalHandle) -> int:
        self._pass("export_fd", size_bytes=handle.size_bytes)
        return self._inner.export_fd(handle)

    def import_fd(self, descriptor: int, size_bytes: int) -> PhysicalHandle:
        self._pass("import_fd", size_bytes=size_bytes)
        return self._inner.import_fd(descriptor, size_bytes)

    def synchronize(self) -> None:
        self._pass("synchronize")
        self._inner.synchronize()

    def fence(self, stream: int = 0) -> Fence:
        """A fence whose questions may fail too: they are calls named "fence_done"."""
        self._pass("fence")
        return FaultyFence(self._inner.fence(stream), partial(self._pass, "fence_done"))

    def memory_info(self) -> MemoryInfo:
        return self._inner.memory_info()

    def scrub(self, handle: PhysicalHandle) -> None:
        self._pass("scrub", size_bytes=handle.size_bytes)
        self._inner.scrub(handle)

    def calls(self) -> Mapping[str, int]:
        return self._inner.calls()

    def close(self) -> None:
        self._inner.close()

    def _pass(self, name: str, address: int = 0, size_bytes: int = 0) -> None:
        failed = self._plan(name, self._log[self._since :])
        self._log.append(Call(len(self._log) + 1, name, address, size_bytes, failed))
        if failed:
            raise DriverError(call=name, code=errno.EIO, name="EIO", address=address, size_bytes=size_bytes)
