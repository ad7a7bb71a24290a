"""Everything that can be seen of a device and of this process, and what must always hold of it.

A picture is taken before and after an operation that fails: the two are equal, or something is in quarantine. Its
figures come from two sides: the device's own books, and the kernel's (descriptors, mappings).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from kvcluster.services.local import LocalDevice
from kvcluster.services.statistics import DeviceStatistics


@dataclass(frozen=True, slots=True)
class Picture:
    """One moment. `mappings` are this process's mappings of device memory, as the kernel lists them."""

    accounts: Mapping[str, int]
    handles: Mapping[str, int]
    sessions: Mapping[str, str]
    open_requests: int
    reserved_bytes: int
    descriptors: int
    mappings: tuple[str, ...]

    @property
    def quarantined_bytes(self) -> int:
        return self.accounts.get("quarantine", 0)

    def claims(self) -> Picture:
        """The same without what a pool keeps: who has which bytes, and what is mapped."""
        kept = {state: size_bytes for state, size_bytes in self.handles.items() if state != "pooled"}
        return replace(self, handles=kept, descriptors=0)


def picture(device: LocalDevice) -> Picture:
    """A picture of `device` and of this process, after an audit.

    Raises:
        InvariantBroken: the device's books do not sum.
    """
    seen = device.audit()
    return Picture(
        accounts=dict(seen.accounts),
        handles=dict(seen.handles),
        sessions=dict(seen.sessions),
        open_requests=seen.open_requests,
        reserved_bytes=seen.reserved_bytes,
        descriptors=len(os.listdir("/proc/self/fd")),
        mappings=mappings(),
    )


def mappings() -> tuple[str, ...]:
    """This process's mappings of device memory: address, access, offset and inode of each, in address order."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return tuple(line for line in lines if "memfd:kvcluster" in line)


def assert_ledger_balances(device: LocalDevice) -> DeviceStatistics:
    """Every account and every handle is accounted for, and the hardware agrees."""
    seen = device.audit()
    assert sum(seen.accounts.values()) == seen.capacity_bytes
    assert min(seen.accounts.values()) > 0
    assert min(seen.handles.values()) >= 0
    return seen


def assert_nothing_lost(device: LocalDevice) -> None:
    """Nobody has anything: all bytes are free, no request is open and nothing is in quarantine."""
    seen = assert_ledger_balances(device)
    assert dict(seen.accounts) == {"free": seen.capacity_bytes}
    assert seen.open_requests == 0
    assert seen.reserved_bytes == 0
    assert seen.handles["out"] == seen.handles["quarantined"] == 0
