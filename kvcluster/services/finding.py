"""Prefixes that nobody names: a request says its tokens, and joins the longest beginning of them that is shared.

Looking up, using and paying for the rest is one group under the device's lock: whoever was found cannot go before it is
used, and a group that is refused uses nothing. What is listed, and when, is in `services.listing`.

With sliding windows a join is possible only at a boundary that was published. So who computes a beginning that others
computed too is told how much of it (`known`), and publishes it when it passes there; one request at a time is told.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice

from kvcluster.errors import NotAllowed, NotShareable
from kvcluster.index.token_chain import ID_BYTES, count_of
from kvcluster.memory.reservation import Reservation, ReservationState
from kvcluster.services.books import Books
from kvcluster.services.listing import MOST_TRIED
from kvcluster.services.sharing import Joining, Sharing
from kvcluster.services.told import ToldIds, checked_count
from kvcluster.services.work import Work


@dataclass(frozen=True, slots=True)
class Finding:
    """What was joined, if anything; `known` tokens were computed by somebody before."""

    known: int = 0
    joining: Joining | None = None


@dataclass(slots=True)
class FindingFigures:
    """How often somebody looked, for how many tokens, and how many of them need no computing."""

    lookups: int = 0
    asked_tokens: int = 0
    found_tokens: int = 0


class Finder:
    """Of one device."""

    def __init__(self, books: Books, sharing: Sharing, told: ToldIds) -> None:
        self.figures = FindingFigures()
        self._books = books
        self._sharing = sharing
        self._told = told

    def find(self, reservation: Reservation, token_ids: bytes, work: Work) -> Finding:
        """Join the longest known beginning of these tokens, which are the request's from now on.

        Raises:
            NotAllowed: the request holds or uses something, has no room for so many tokens, or the bytes are no ids.
                Nothing changed.
            LimitReached: the session has told too many ids. Nothing changed.
        """
        self._check(reservation, token_ids)
        self._told.tell(reservation, token_ids, work)
        self.ended(reservation)  # with what it was told when it last looked
        if not reservation.cache_root:
            return Finding()
        covered, joining = self._joined(reservation, token_ids, work)
        work.after.append(lambda: self._count(token_ids, joining))
        tells = reservation.range_map.shape.has_rings and self._has_room(reservation)
        known = self._known(reservation, covered, work) if tells else covered
        return Finding(known, joining)

    def ended(self, reservation: Reservation) -> None:
        """It will publish nothing that it was told to."""
        self._books.index.ended(reservation.request)

    def _check(self, reservation: Reservation, token_ids: bytes) -> None:
        if reservation.state is not ReservationState.RESERVED:
            raise NotAllowed(reason=f"request {reservation.request} finds before it holds or uses anything")
        reservation.missing(checked_count(token_ids))  # refuses what is too long

    def _joined(self, reservation: Reservation, token_ids: bytes, work: Work) -> tuple[int, Joining | None]:
        """How many of the tokens the prefix that was joined has, and the join."""
        if not self._has_room(reservation):
            return 0, None
        for match in islice(self._books.index.matches(reservation.cache_root, token_ids), MOST_TRIED):
            named = work.runs_named
            try:
                joining = self._sharing.join(reservation, match.number, match.tokens, work)
            except NotShareable:
                work.runs_named = named  # no answer names what could not be sealed
                continue
            return match.tokens, _to_the_last(joining, count_of(token_ids))
        return 0, None

    def _has_room(self, reservation: Reservation) -> bool:
        """Whether all of the request fits beside the snapshots that it would share."""
        range_map = reservation.range_map
        most_bytes = range_map.most_bytes + range_map.shape.snapshot_bytes
        return most_bytes <= self._books.most_bytes(reservation.tenant)

    def _known(self, reservation: Reservation, covered: int, work: Work) -> int:
        """Beyond `covered`, what this request is to publish when it has computed it: what others computed before.

        Without rings nobody is told: what ends is kept, and can be joined anywhere.
        """
        root, token_ids, request = reservation.cache_root, reservation.token_ids, reservation.request
        index = self._books.index
        work.after.append(lambda: index.note(root, token_ids, request))
        known = index.known(root, token_ids, request)
        if known <= covered or not index.claim(root, token_ids[: known * ID_BYTES], request):
            return covered
        work.txn.doing("publication claimed", 0, undo=lambda _: index.ended(request))
        return known

    def _count(self, token_ids: bytes, joining: Joining | None) -> None:
        self.figures.lookups += 1
        self.figures.asked_tokens += count_of(token_ids)
        self.figures.found_tokens += joining.tokens if joining else 0


def _to_the_last(joining: Joining, tokens: int) -> Joining:
    """The same for a request of so many tokens: where more follow what is equal, that is there to its last token.

    A window that was copied out of rings ends at the boundary that its prefix has, and nowhere else.
    """
    shape = joining.prefix.shape
    if shape.has_rings:
        return joining
    return replace(joining, tokens=shape.reusable_tokens(joining.part.windows, tokens))
