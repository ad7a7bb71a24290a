"""What one device is made of: sizes of its memory, and what it grants its clients.

Values, and the rules by which sizes follow from others: how much may stay pooled, how large a bulk handle is, and what
of a GPU's memory is the device's. Nothing is measured here: what is free on a GPU its driver tells, and the caller us.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kvcluster.budget.governor import Limits
from kvcluster.budget.quotas import Quotas
from kvcluster.driver.protocol import MemoryInfo
from kvcluster.services.asks import MOST_RUNS
from kvcluster.services.sessions import ReplyLimits
from kvcluster.units import MIB, format_bytes

BULK_BYTES = 16 * MIB  # of a GPU's long runs: creating and mapping cost a call, whatever the size


def pool_bytes_for(capacity_bytes: int) -> int:
    """How much of a device may stay pooled: the smaller of 64 MiB and 2 %."""
    return min(64 * MIB, capacity_bytes // 50)


def bulk_bytes_for(granule_bytes: int) -> int:
    """The size of a bulk handle on a GPU; 0 for none, where it is not several whole granules."""
    return 0 if granule_bytes >= BULK_BYTES or BULK_BYTES % granule_bytes else BULK_BYTES


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """Bytes: the device's capacity, its granule, how much may stay pooled, and a bulk handle (0: none is larger than a
    granule). `quotas` bound what tenants may have. What a process had that died is kept `grace_s` for its successor.

    Raises:
        ValueError: the capacity or a bulk handle is not a whole number of granules, there is no capacity, or the grace
            is negative.
    """

    capacity_bytes: int
    granule_bytes: int
    pool_bytes: int
    limits: Limits = field(default_factory=Limits)
    quotas: Quotas = field(default_factory=Quotas)
    bulk_bytes: int = 0
    grace_s: float = 0.0

    def __post_init__(self) -> None:
        if min(self.capacity_bytes, self.granule_bytes) < 1 or self.capacity_bytes % self.granule_bytes:
            raise ValueError(
                f"a device of {self.capacity_bytes} bytes is no whole number of granules of {self.granule_bytes} "
                f"bytes: give a multiple of the granule, and at least one"
            )
        if self.grace_s < 0:
            raise ValueError(f"a grace of {self.grace_s} s is negative")
        if self.bulk_bytes < 0 or self.bulk_bytes % self.granule_bytes:
            raise ValueError(
                f"a bulk handle of {self.bulk_bytes} bytes is no whole number of granules of {self.granule_bytes} bytes"
            )

    @property
    def largest_bytes(self) -> int:
        """The largest handle."""
        return self.bulk_bytes or self.granule_bytes


def what_is_there(asked: MemorySettings, *, device: str, free_bytes: int, utilization: float) -> MemorySettings:
    """`asked`, but at most `utilization` of a GPU's free bytes, in whole granules.

    Raises:
        ValueError: that is not one granule.
    """
    most_bytes = min(asked.capacity_bytes, int(utilization * free_bytes))
    capacity_bytes = most_bytes // asked.granule_bytes * asked.granule_bytes
    if not capacity_bytes:
        raise ValueError(
            f"{device} has {format_bytes(free_bytes)} free, of which {format_bytes(most_bytes)} are ours, and a "
            f"granule is {format_bytes(asked.granule_bytes)}: end what uses it, or raise gpu_memory_utilization"
        )
    return replace(asked, capacity_bytes=capacity_bytes, pool_bytes=pool_bytes_for(capacity_bytes))


def free_beside(info: MemoryInfo, *, foreign_bytes: int, asked_bytes: int) -> int:
    """What is free of a GPU, or is the device's already: `foreign_bytes` are what survivors have mapped of it.

    Survivors that share a prefix tell its bytes each, so that these may be more than the device ever had
    (`asked_bytes`), and with what is free more than there is.
    """
    return min(info.free_bytes + min(foreign_bytes, asked_bytes), info.total_bytes)


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    """`epoch` is the incarnation's own number, `incarnation` counts those of this owner from 1; `lease_s` and
    `heartbeat_s` are told to clients.

    `most_runs` is how many runs of windows one reply names, so that it fits into a frame, `replies` what one session
    may leave unacknowledged, and `most_ended` how many names of ended sessions are remembered.
    """

    name: str
    memory: MemorySettings
    epoch: int = 1
    lease_s: float = 30.0
    heartbeat_s: float = 5.0
    most_runs: int = MOST_RUNS
    replies: ReplyLimits = field(default_factory=ReplyLimits)
    most_ended: int = 4096
    incarnation: int = 1
