"""A driver that can give everything back, so that a test which leaks on purpose leaves nothing behind.

Only what is handed out is noted here; every other call is the wrapped driver's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from kvcluster.driver.host import HostDriver
from kvcluster.driver.protocol import Driver, PhysicalHandle
from kvcluster.errors import DriverError
from kvcluster.transaction import Progress


class Tidied:
    """`inner`, remembering what it handed out, whoever asked; `clear` takes it back."""

    def __init__(self, inner: Driver) -> None:
        self._inner = inner
        self._ranges: dict[int, int] = {}
        self._handles: list[PhysicalHandle] = []
        self._places: dict[int, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def reserve(self, size_bytes: int) -> int:
        address = self._inner.reserve(size_bytes)
        self._ranges[address] = size_bytes
        return address

    def create(self, size_bytes: int) -> PhysicalHandle:
        self._handles.append(self._inner.create(size_bytes))
        return self._handles[-1]

    def import_fd(self, descriptor: int, size_bytes: int) -> PhysicalHandle:
        self._handles.append(self._inner.import_fd(descriptor, size_bytes))
        return self._handles[-1]

    def map(self, address: int, handles: Sequence[PhysicalHandle], done: Progress) -> None:
        before = done.count
        try:
            self._inner.map(address, handles, done)
        finally:
            for handle in handles[: done.count - before]:
                self._places[address] = handle.size_bytes
                address += handle.size_bytes

    def close(self) -> None:
        """Stays open for `clear`; there is nothing else to close."""

    def clear(self) -> None:
        """Unmap, release and free whatever is left, and close."""
        for address, size_bytes in self._places.items():
            with suppress(DriverError):
                self._inner.unmap(address, size_bytes)
        for handle in self._handles:
            with suppress(DriverError):
                self._inner.release(handle)
        for address, size_bytes in self._ranges.items():
            with suppress(DriverError):
                self._inner.free_address(address, size_bytes)
        self._inner.close()


class TidyDriver(Tidied):
    """The host's."""

    def __init__(self, *, granule_bytes: int, capacity_bytes: int) -> None:
        super().__init__(HostDriver(granule_bytes=granule_bytes, capacity_bytes=capacity_bytes))
