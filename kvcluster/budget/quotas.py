"""How much of a device each tenant may have, and what of it nobody else takes.

A quota bounds all that a tenant has: grants, requests, prefixes, what is retained, what is quarantined. Where all named
quotas together fit into the capacity they are *guarded*: what a tenant retains below its quota goes for nobody else.
Then no tenant may ask for what others may keep: at most the capacity without their quotas, so that whoever waits
longest is served without it. Where they do not fit (a GPU was measured smaller, say) nothing is guarded: a quota is
an upper bound, and what its tenant retains goes after all else, for whoever needs the room.

A tenant that is not named has no quota, or the default one: a bound that is never guarded, because nobody knows how
many tenants it is for. Why: docs/decisions/0012-a-quota-that-fits-is-a-place-of-ones-own.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Quotas:
    """`default_bytes` is every other tenant's, each its own; None for none.

    Raises:
        ValueError: a quota is negative.
    """

    by_tenant: Mapping[str, int] = field(default_factory=dict)
    default_bytes: int | None = None
    named_bytes: int = field(init=False, repr=False, compare=False)  # all quotas of `by_tenant` together

    def __post_init__(self) -> None:
        if min(self.by_tenant.values(), default=0) < 0 or (self.default_bytes or 0) < 0:
            raise ValueError(f"a quota is at least 0 bytes: {dict(self.by_tenant)}, default {self.default_bytes}")
        object.__setattr__(self, "named_bytes", sum(self.by_tenant.values()))

    def of(self, tenant: str) -> int | None:
        """The tenant's quota; None where only the capacity bounds it."""
        return self.by_tenant.get(tenant, self.default_bytes)

    def guarded(self, capacity_bytes: int) -> Mapping[str, int]:
        """The quotas that nobody else takes from: all named ones, or none where they are more than the capacity."""
        return self.by_tenant if self.named_bytes <= capacity_bytes else {}

    def most_bytes(self, tenant: str, capacity_bytes: int, *, gone_bytes: int, gone_of: Callable[[str], int]) -> int:
        """The most that the tenant can have, where `gone_bytes` do not come back, `gone_of` each tenant; at least 0.

        Its own count in its quota, and everybody's in the capacity. What others may keep is not to be had.
        """
        guarded = self.guarded(capacity_bytes).items()
        kept = sum(max(0, quota - gone_of(other)) for other, quota in guarded if other != tenant)
        most, quota = capacity_bytes - gone_bytes - kept, self.of(tenant)
        return max(0, most if quota is None else min(most, quota - gone_of(tenant)))
