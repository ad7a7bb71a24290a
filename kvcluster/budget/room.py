"""How large a grant can be, and what must be evicted for it: arithmetic, before anything is done.

What is free less a headroom may be below zero: older requests and those that run are to have more than is there. What
the tenant retains and nobody else may have is not for other tenants to wait for: it can be had all the same, as far as
the tenant's own older requests do not wait for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvcluster.budget.admission import Headroom
from kvcluster.budget.eviction import Evictable


@dataclass(frozen=True, slots=True)
class Room:
    """What is free, and what is left of one tenant's quota beside the headroom, with nothing evicted.

    `quota_bytes` is below 0 where the headroom is more.
    """

    free_bytes: int
    quota_bytes: int
    headroom: Headroom

    @property
    def device_bytes(self) -> int:
        """What is free beside the headroom; below 0 where that is more."""
        return self.free_bytes - self.headroom.device_bytes

    def at_most(self, evictable: Evictable) -> int:
        """The largest grant, with all of that evicted."""
        return min(self._on_device(evictable), self.quota_bytes + evictable.own_bytes)

    def to_evict(self, size_bytes: int, evictable: Evictable) -> Evictable:
        """What must go for a grant of `size_bytes`, which is at most `at_most`."""
        device_bytes = self.device_bytes if self._unguarded_bytes(evictable) > 0 else 0
        short_bytes = max(0, size_bytes - min(device_bytes, self.quota_bytes))
        own_bytes = min(evictable.own_bytes, short_bytes)
        return Evictable(own_bytes, max(0, size_bytes - device_bytes - own_bytes))

    def _on_device(self, evictable: Evictable) -> int:
        unguarded_bytes = self._unguarded_bytes(evictable)
        if unguarded_bytes > 0:
            return unguarded_bytes + evictable.guarded_bytes
        for_tenant = self.free_bytes + evictable.own_bytes + evictable.others_bytes
        return min(evictable.guarded_bytes, for_tenant - self.headroom.tenant_bytes)

    def _unguarded_bytes(self, evictable: Evictable) -> int:
        """What others could have too, beside the headroom."""
        return self.device_bytes + evictable.own_bytes - evictable.guarded_bytes + evictable.others_bytes
