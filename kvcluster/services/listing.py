"""Which prefixes of a device are found by their tokens, and which are not worth making a second time.

A prefix is listed when nobody can write it any more: after its seal, or when its request has ended. What the request
said of its tokens must reach as far as the prefix does; a request without a cache root said nothing. Listed prefixes
are kept until their memory is needed. They are taken out where they are drained: `services.books`.
"""

from __future__ import annotations

from itertools import islice

from kvcluster.geometry.residency import Shape
from kvcluster.index.token_chain import ID_BYTES
from kvcluster.memory.reservation import Reservation
from kvcluster.memory.shared_prefix import Extent, SharedPrefix
from kvcluster.services.books import Books
from kvcluster.services.joinable import serves

MOST_TRIED = 8  # prefixes that begin alike, until one is of use


def list_prefix(books: Books, reservation: Reservation, prefix: SharedPrefix) -> None:
    """Whoever has its tokens finds it from now on. Nothing, where its request did not say them."""
    token_ids = _beginning(reservation, listable_tokens(prefix.shape, prefix.extent))
    if not token_ids:
        return
    base_tokens = 0
    if prefix.parent is not None and prefix.parent.number in books.index:
        base_tokens = prefix.shape.reusable_tokens(prefix.extent.base, prefix.extent.tokens)
    root = reservation.cache_root
    prefix.content = books.index.insert(root, token_ids, prefix.number, base_tokens=base_tokens)
    prefix.is_kept = True


def listed_alike(books: Books, reservation: Reservation, extent: Extent) -> int | None:
    """A prefix that serves whoever has these tokens as well as one that the request would make of them now."""
    shape = reservation.range_map.shape
    tokens = listable_tokens(shape, extent)
    for match in islice(books.index.matches(reservation.cache_root, _beginning(reservation, tokens)), MOST_TRIED):
        prefix = books.prefixes.find(match.number, reservation.tenant)
        if match.tokens == tokens and serves(prefix, shape, tokens, extent.windows):
            return match.number
    return None


def end_claim(books: Books, reservation: Reservation) -> None:
    """Windows of it went: one that has none any more computes nothing, and nobody waits for it to publish that.

    When it looks again it may be told to once more (`services.finding`).
    """
    if not reservation.own.count and not reservation.uses:
        books.index.ended(reservation.request)


def listable_tokens(shape: Shape, extent: Extent) -> int:
    """How many tokens a prefix is found by: all, or those before a window that it lacks (a hole, a bulk handle)."""
    if extent.windows == shape.shared_windows(extent.tokens):
        return extent.tokens
    return shape.reusable_tokens(extent.windows, extent.tokens)


def _beginning(reservation: Reservation, tokens: int) -> bytes:
    """The ids of its first `tokens` tokens; none, where they are not known or are not to be found."""
    size = tokens * ID_BYTES
    return reservation.token_ids[:size] if reservation.cache_root and len(reservation.token_ids) >= size else b""
