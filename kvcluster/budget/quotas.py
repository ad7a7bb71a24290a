"""How much of a device each tenant may have at most.

A quota bounds all that a tenant has: grants, requests, prefixes, what is retained, what is quarantined. It promises
nothing: the sum of all quotas may be more than the capacity. What a tenant uses nobody takes from it; what it retains
and nobody uses goes, after all else, for whoever needs the room. A tenant without a quota is bounded by the capacity
alone, and its retained prefixes go before those of tenants with one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Quotas:
    """`default_bytes` is every other tenant's, each its own; None for none.

    Raises:
        ValueError: a quota is negative.
    """

    by_tenant: Mapping[str, int] = field(default_factory=dict)
    default_bytes: int | None = None

    def __post_init__(self) -> None:
        if min(self.by_tenant.values(), default=0) < 0 or (self.default_bytes or 0) < 0:
            raise ValueError(f"a quota is at least 0 bytes: {dict(self.by_tenant)}, default {self.default_bytes}")

    def of(self, tenant: str) -> int | None:
        """The tenant's quota; None where only the capacity bounds it."""
        return self.by_tenant.get(tenant, self.default_bytes)
