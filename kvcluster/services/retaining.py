"""What an ended request leaves for others: a prefix of the windows that it held, or one that it had shared before.

Planned while its group can still be undone, and kept when it is over; sealed by its first join (`services.sharing`).
How long it stays is in `services.retained`. Called under the device service's lock.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvcluster.memory.reservation import Reservation
from kvcluster.memory.shared_prefix import Extent, SharedPrefix
from kvcluster.services.books import Books
from kvcluster.services.joinable import lies_inside, tokens_of
from kvcluster.services.listing import list_prefix, listed_alike
from kvcluster.services.sharing import Sharing
from kvcluster.services.work import Work


@dataclass(frozen=True, slots=True)
class RetainedPrefix:
    """What an ended request leaves for others: a prefix that begins with its first `tokens` tokens."""

    prefix: SharedPrefix
    tokens: int


class Retaining:
    """Of one device."""

    def __init__(self, books: Books, sharing: Sharing) -> None:
        self._books = books
        self._sharing = sharing

    def plan(self, reservation: Reservation, work: Work) -> SharedPrefix | None:
        """Plan what of a request that ends now stays for others; None where nothing of it would help anybody.

        Whole handles of the windows that it holds, on top of the prefixes that it left in this very group.
        """
        shape = reservation.range_map.shape
        if shape.has_rings:  # what a ring held before is gone, and no snapshot was made
            return None
        limit = shape.shared_windows(work.retain_tokens)
        kept = next((use for use in work.left if lies_inside(use, limit)), None)
        base = kept.windows if kept else (0,) * len(limit)
        windows = reservation.own.contiguous(base, limit)
        if windows == base or not shape.reusable_tokens(windows, work.retain_tokens):
            return None
        extent = Extent(work.retain_tokens, windows, base)
        if listed_alike(self._books, reservation, extent) is not None:
            return None
        prefix = self._sharing.plan(reservation, extent, kept.prefix if kept else None)
        work.txn.doing("prefix retained", 0, undo=lambda _: self._sharing.forget(prefix))
        return prefix

    def retained(self, planned: SharedPrefix | None, work: Work) -> RetainedPrefix | None:
        """The newest prefix that stays: the one that was planned, or one that the request left in this group."""
        if planned is not None:
            return RetainedPrefix(planned, planned.extent.tokens)
        for use in work.left:
            if lies_inside(use, use.prefix.shape.shared_windows(work.retain_tokens)):
                return RetainedPrefix(use.prefix, tokens_of(use))
        return None

    def keep(self, reservation: Reservation, prefix: SharedPrefix) -> None:
        """The planned prefix is what the request, which ends now, leaves."""
        self._books.hand_to_prefix(reservation, prefix)
        list_prefix(self._books, reservation, prefix)
        prefix.is_kept = True
        self._books.booked(self._books.prefixes.settle(prefix))
