"""The ids of a request's tokens that its owner was told, and that both sides mean the same ones.

Ids are told by a Find, from the first token on, and some more by what lists them for others (Share, Close). Rows that
are listed under another request's ids are found by its successors and served as theirs, so whoever adds ids says how
many he believes were told before, and an owner that has another number of them refuses. Ids are all that costs an owner
memory that no grant pays for: a session may have told so many bytes of them, and no more.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Protocol

from kvcluster.errors import LimitReached, NotAllowed
from kvcluster.ids import RequestId
from kvcluster.index.token_chain import ID_BYTES, count_of
from kvcluster.services.work import Work
from kvcluster.units import MIB

MOST_TOLD_BYTES = 64 * MIB  # of one session's open requests: 16 million tokens


class Teller(Protocol):
    """An open request, as its owner knows it."""

    request: RequestId
    token_ids: bytes


class ToldIds:
    """At the owner: the ids of all open requests, counted by session."""

    def __init__(self) -> None:
        self._bytes_of: Counter[str] = Counter()

    def tell(self, teller: Teller, token_ids: bytes, work: Work) -> None:
        """These are its ids from now on, unless the group is undone. Raises as `check_room`; nothing changed."""
        self.check_room(teller.request.session, len(token_ids) - len(teller.token_ids))
        self.complete(teller, token_ids, work)

    def complete(self, teller: Teller, token_ids: bytes, work: Work) -> None:
        """The same of one that ends in this group, however many there are then."""
        before = teller.token_ids
        self.put(teller, token_ids)
        work.txn.doing("tokens told", 0, undo=lambda _: self.put(teller, before))

    def put(self, teller: Teller, token_ids: bytes) -> None:
        """The same for good, however many there are then; none, when the request ends."""
        session = teller.request.session
        self._bytes_of[session] += len(token_ids) - len(teller.token_ids)
        if not self._bytes_of[session]:
            del self._bytes_of[session]
        teller.token_ids = token_ids

    def bytes_of(self, session: str) -> int:
        """Of its open requests."""
        return self._bytes_of[session]

    def check_room(self, session: str, more_bytes: int) -> None:
        """So many bytes of ids can be added.

        Raises:
            LimitReached: the session would have told more than `MOST_TOLD_BYTES`.
        """
        free = MOST_TOLD_BYTES - self._bytes_of[session]
        if more_bytes > max(0, free):
            limit, remedy = "bytes of token ids of a session", "close some requests first"
            raise LimitReached(limit=limit, need=more_bytes, free=free, remedy=remedy)


def continued(teller: Teller, told_tokens: int, token_ids: bytes, *, most_tokens: int) -> bytes:
    """All ids of the request, with these, which follow the first `told_tokens` of them.

    Raises:
        NotAllowed: it has told another number of ids, these are no ids, or more than `most_tokens` with them.
    """
    there = count_of(teller.token_ids)
    if there != told_tokens:
        raise NotAllowed(reason=f"request {teller.request} has told {there} ids, and these follow {told_tokens}")
    told = there + checked_count(token_ids)
    if told > most_tokens:
        raise NotAllowed(reason=f"request {teller.request} would tell {told} ids, and has room for {most_tokens}")
    return teller.token_ids + token_ids


def checked_count(token_ids: bytes) -> int:
    """How many ids these are. Raises NotAllowed where they are none."""
    try:
        return count_of(token_ids)
    except ValueError as wrong:
        raise NotAllowed(reason=str(wrong)) from wrong


@dataclass(slots=True)
class Told:
    """At the client: of the first `there` tokens the owner has the ids, and whoever asks has `heard` of so many.

    These are fewer where a Find was executed and what it gave could not be mapped: whoever asked takes it for undone.
    """

    there: int = 0
    heard: int = 0

    def answered(self) -> None:
        """Whoever asks hears that all went well."""
        self.heard = self.there

    @property
    def tokens(self) -> int:
        """How many the owner is to have; one that has fewer than were heard of refuses what follows them."""
        return max(self.there, self.heard)

    def unsaid(self, token_ids: bytes) -> bytes:
        """Of ids that follow those heard of: what the owner has not."""
        return token_ids[(self.tokens - self.heard) * ID_BYTES :]

    def cut(self, tokens: int) -> Told:
        """Of one that begins with the first `tokens` tokens of this one."""
        return Told(min(self.there, tokens), min(self.heard, tokens))
