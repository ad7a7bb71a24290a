"""One device's feed, applied: whatever is lost, comes twice or late, what is known of it ends as what it last told.

An answer counts where it says what happened behind the very event that was seen last, or all that is known at a later
one; any other is let go, and the question is asked again. Epochs only rise: an earlier incarnation's answer is late.
"""

from __future__ import annotations

from kvcluster.services.known_blocks import NEVER, KnownBlocks
from kvcluster.services.routing.known import KnownPrefixes


class Follower:
    """Of one device of `known`, which joins it here."""

    def __init__(self, device: str, known: KnownPrefixes) -> None:
        self._device = device
        self._known = known
        self.epoch = 0
        self.number = NEVER  # what was seen last: what to ask for is what came behind it
        known.join(device)

    def take(self, answer: KnownBlocks) -> bool:
        """What the device said; whether it counts. Where it does not, nothing changed."""
        news, is_new = answer.news, answer.epoch != self.epoch
        if answer.epoch < self.epoch:
            return False
        if news.after is None:
            if not is_new and news.number < self.number:
                return False
            if is_new:
                self._known.lost(self._device)
            self._known.has_only(self._device, news.stored)
        elif is_new or news.after != self.number:
            return False
        else:
            self._known.changed(self._device, news)
        self._known.has_free(self._device, answer.free_bytes)
        self.epoch, self.number = answer.epoch, news.number
        return True

    def lost(self) -> None:
        """The device does not answer any more: nothing is known of it, until it tells all again."""
        self._known.lost(self._device)
        self.number = NEVER
