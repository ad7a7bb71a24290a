"""What can be freed at once for whom, and who frees it: the seam between the governor and the retained prefixes.

The governor says how many bytes it is short of; which prefixes go, in which order, and whose may go for whom is
decided where prefixes are known. A refusal evicts nothing: the governor asks what could be had first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Evictable:
    """Bytes that can be freed at once for one tenant: of its own, which also frees its quota, and of others'."""

    own_bytes: int = 0
    others_bytes: int = 0


class Evictor(Protocol):
    def evictable_bytes(self, tenant: str) -> Evictable:
        """What `evict` could free for the tenant now."""

    def evict(self, tenant: str, *, own_bytes: int, others_bytes: int) -> None:
        """Free at least so much of each, of what `evictable_bytes` said. Never raises.

        What a failing driver call keeps from being free was charged to the quarantine (`Governor.lose`).
        """


class NothingRetained:
    """The evictor of a device that retains nothing."""

    def evictable_bytes(self, tenant: str) -> Evictable:
        return Evictable()

    def evict(self, tenant: str, *, own_bytes: int, others_bytes: int) -> None:
        """There is nothing to free."""
