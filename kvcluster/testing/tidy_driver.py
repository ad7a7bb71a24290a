"""A host driver that can give everything back, so that a test which leaks on purpose leaves nothing behind."""

from __future__ import annotations

from contextlib import suppress

from kvcluster.driver.host import HostDriver
from kvcluster.driver.protocol import PhysicalHandle
from kvcluster.errors import DriverError


class TidyDriver(HostDriver):
    """Remembers what it handed out, whoever asked; `clear` takes it back."""

    def __init__(self, *, granule_bytes: int, capacity_bytes: int) -> None:
        super().__init__(granule_bytes=granule_bytes, capacity_bytes=capacity_bytes)
        self._ranges: dict[int, int] = {}
        self._handles: list[PhysicalHandle] = []
        self._places: dict[int, int] = {}

    def reserve(self, size_bytes: int) -> int:
        address = super().reserve(size_bytes)
        self._ranges[address] = size_bytes
        return address

    def create(self, size_bytes: int) -> PhysicalHandle:
        self._handles.append(super().create(size_bytes))
        return self._handles[-1]

    def import_fd(self, descriptor: int, size_bytes: int) -> PhysicalHandle:
        self._handles.append(super().import_fd(descriptor, size_bytes))
        return self._handles[-1]

    def map(self, address: int, handle: PhysicalHandle) -> None:
        super().map(address, handle)
        self._places[address] = handle.size_bytes

    def close(self) -> None:
        """Stays open for `clear`; there is nothing else to close."""

    def clear(self) -> None:
        """Unmap, release and free whatever is left, and close."""
        for address, size_bytes in self._places.items():
            with suppress(DriverError):
                super().unmap(address, size_bytes)
        for handle in self._handles:
            with suppress(DriverError):
                super().release(handle)
        for address, size_bytes in self._ranges.items():
            with suppress(DriverError):
                super().free_address(address, size_bytes)
        super().close()
