"""What the contract's tests work at: a driver and what a test left open on it, and a look at the bytes."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import pytest

from kvcluster.driver.protocol import Access, Driver, PhysicalHandle
from kvcluster.errors import DriverError
from kvcluster.transaction import Progress


class Peeking(Protocol):
    """A driver whose memory only the device reaches."""

    def peek(self, address: int, size_bytes: int) -> bytes: ...

    def poke(self, address: int, content: bytes) -> None: ...


def peek(driver: Driver, address: int, size_bytes: int) -> bytes:
    """The bytes at `address`, wherever they are."""
    if driver.is_host_memory:
        return ctypes.string_at(address, size_bytes)
    return _peeking(driver).peek(address, size_bytes)


def poke(driver: Driver, address: int, content: bytes) -> None:
    """Write them, as whoever maps the memory does: the CPU's store, or the device's."""
    if driver.is_host_memory:
        ctypes.memmove(address, content, len(content))
    else:
        _peeking(driver).poke(address, content)


def _peeking(driver: Driver) -> Peeking:
    found: Any = driver
    return cast(Peeking, getattr(found, "inner", found))


def forked(act: Callable[[], None]) -> int:
    """What `waitpid` says of a forked child that does `act` and ends; an error of `act` is its status 1."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn where there are threads
        child = os.fork()
    if child == 0:
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        status = 1
        try:
            act()
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1]


@dataclass(slots=True)
class Bench:
    """A driver, and what a test left open on it."""

    driver: Driver
    _ranges: list[tuple[int, int]] = field(default_factory=list)
    _mapped: list[tuple[int, int]] = field(default_factory=list)
    _handles: list[PhysicalHandle] = field(default_factory=list)

    @property
    def granule(self) -> int:
        return self.driver.granularity_bytes

    def reserve(self, granules: int) -> int:
        address = self.driver.reserve(granules * self.granule)
        self._ranges.append((address, granules * self.granule))
        return address

    def create(self, granules: int = 1) -> PhysicalHandle:
        self._handles.append(self.driver.create(granules * self.granule))
        return self._handles[-1]

    def adopt(self, descriptor: int, size_bytes: int) -> PhysicalHandle:
        """Import it; the descriptor stays the caller's."""
        self._handles.append(self.driver.import_fd(descriptor, size_bytes))
        return self._handles[-1]

    def import_from(self, other: Bench, handle: PhysicalHandle) -> PhysicalHandle:
        descriptor = other.driver.export_fd(handle)
        try:
            return self.adopt(descriptor, handle.size_bytes)
        finally:
            os.close(descriptor)

    def map(self, address: int, *handles: PhysicalHandle, access: Access = Access.READ_WRITE) -> None:
        """The handles side by side, with access."""
        self.map_only(address, *handles)
        self.driver.set_access(address, sum(handle.size_bytes for handle in handles), access)

    def map_only(self, address: int, *handles: PhysicalHandle) -> None:
        done = Progress()
        try:
            self.driver.map(address, handles, done)
        finally:
            for handle in handles[: done.count]:
                self._mapped.append((address, handle.size_bytes))
                address += handle.size_bytes

    def peek(self, address: int, size_bytes: int) -> bytes:
        return peek(self.driver, address, size_bytes)

    def poke(self, address: int, content: bytes) -> None:
        poke(self.driver, address, content)

    def calls(self) -> dict[str, int]:
        """The calls that a test may judge by: looking at bytes is none of them."""
        return {name: count for name, count in self.driver.calls().items() if name not in ("peek", "poke")}

    @contextmanager
    def refused(self, call: str, *, name: str | None = None) -> Iterator[pytest.ExceptionInfo[DriverError]]:
        """The block raises DriverError for `call`, and the hardware was not asked."""
        before = self.calls()
        with pytest.raises(DriverError) as caught:
            yield caught
        assert caught.value.call == call
        assert caught.value.name in ((name,) if name else ("EINVAL", "CUDA_ERROR_INVALID_VALUE"))
        assert self.calls() == before

    def clear(self) -> None:
        """Give everything back; what the test itself gave back is refused, and that is fine."""
        for address, size_bytes in self._mapped:
            with suppress(DriverError):
                self.driver.unmap(address, size_bytes)
        for handle in self._handles:
            with suppress(DriverError):
                self.driver.release(handle)
        for address, size_bytes in self._ranges:
            with suppress(DriverError):
                self.driver.free_address(address, size_bytes)
        self.driver.close()


CAPTURED = errno.errorcode[errno.EBUSY]
"""The name of a refusal during a capture, whatever the driver."""


class OnBench:
    """The fixtures of every part of the contract."""

    @pytest.fixture
    def bench(self, open_driver: Callable[[], Driver]) -> Iterator[Bench]:
        bench = Bench(open_driver())
        yield bench
        bench.clear()

    @pytest.fixture
    def other(self, open_driver: Callable[[], Driver]) -> Iterator[Bench]:
        """A second driver, as another process would have it."""
        bench = Bench(open_driver())
        yield bench
        bench.clear()
