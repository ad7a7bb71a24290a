"""The verbs that only host pages have; `open`, `find`, `grant`, `commit` and `close` are those of a device.

A sequence is a table of blocks of equal size. The host changes tables and counts, and copies a block when it must;
the client maps all pages once, writes where its tables say, and never changes a table by itself.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kvcluster.wire.base import Count, Message, Positive, RequestKey

MOST_FORKS = 1_024  # children, or members, of one operation

BlockKey = tuple[Count, Count]  # number and generation


class Fork(Message):
    """Open `children` that begin with the request's first `tokens` tokens, in the same blocks. Costs no bytes.

    All or none. Whoever writes first into the last block, which all of them have, gets a copy of it with its next
    `commit`; the others keep it.
    """

    verb: Literal["fork"] = "fork"
    request: RequestKey
    children: Annotated[tuple[RequestKey, ...], Field(min_length=1, max_length=MOST_FORKS)]
    tokens: Positive


class Permute(Message):
    """Sequence `members[i]` goes on from the first `tokens` tokens of `members[parents[i]]`: for beams.

    The request is one of the members. Tables move, and no byte does. All or nothing.
    """

    verb: Literal["permute"] = "permute"
    request: RequestKey
    members: Annotated[tuple[RequestKey, ...], Field(min_length=1, max_length=MOST_FORKS)]
    parents: Annotated[tuple[Count, ...], Field(min_length=1, max_length=MOST_FORKS)]
    tokens: Positive


class Share(Message):
    """The first `tokens` tokens are written: their whole blocks are found by `find` from now on.

    `token_ids` follow the `told_tokens` ids that were named before; where the owner has another number of them, it is
    refused.
    """

    verb: Literal["share"] = "share"
    request: RequestKey
    tokens: Positive
    token_ids: Annotated[bytes, Field(max_length=2**20)] = b""
    told_tokens: Count = 0


class Drop(Message):
    """Every block back; the request stays open, and keeps its place. `quarantined`: it may still write to them."""

    verb: Literal["drop"] = "drop"
    request: RequestKey
    outcome: Literal["clean", "quarantined"] = "clean"


class Paged(Message):
    """From its entry `start` on the sequence's table is `blocks`; before, it is as it was. `tokens` are there by find.

    Of `find`: known tokens whose K and V lie in the table, or will with the `commit` of the same group.
    """

    verb: Literal["paged"] = "paged"
    start: Count
    blocks: tuple[BlockKey, ...]
    known: Count = 0
    tokens: Count = 0


class Forked(Message):
    """The children's arrival numbers."""

    verb: Literal["forked"] = "forked"
    arrivals: tuple[Count, ...]


class Permuted(Message):
    verb: Literal["permuted"] = "permuted"


class Shared(Message):
    """So many tokens can be found."""

    verb: Literal["shared"] = "shared"
    tokens: Count
