"""When to ask again: as the device says, and less and less often while nothing comes back. Values only.

The device tells a waiter how long it may take; nobody tells it when memory came free. So what a waiter sleeps is what
it may sleep too long: never more than `MOST_S` of its own making.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvcluster.errors import OutOfBudget

MOST_S = 2.0


@dataclass(frozen=True, slots=True)
class BackOff:
    """How long a request waits, what it needed and what was free for it; how often it asked since more came free."""

    wait_s: float = 0.0
    free_bytes: int = -1
    in_vain: int = 0
    need_bytes: int = 0

    @property
    def is_refused(self) -> bool:
        """Whether it was refused since it last had what it asked for."""
        return self.wait_s > 0

    def after(self, refusal: OutOfBudget) -> BackOff:
        """The wait that follows `refusal`: twice the last one where nothing has come back since."""
        is_in_vain = refusal.free <= self.free_bytes
        doubled_s = min(2 * self.wait_s, MOST_S) if is_in_vain else 0.0
        in_vain = self.in_vain + 1 if is_in_vain else 0
        return BackOff(max(refusal.retry_after_s, doubled_s), refusal.free, in_vain, refusal.need)
