"""The verbs of shared prefixes: what one request wrote and others map for reading.

Named by number (`publish`, `seal`, `join`, `leave`), or found by their tokens (`find`, which host pages have too). What
sharing is, and why a publication takes two messages: docs/ARCHITECTURE.md, "A shared prefix".
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kvcluster.wire.base import Count, Message, Positive, RequestKey, Run, TokenIds


class Find(Message):
    """Join the longest known prefix of these tokens, which are the request's from now on; costs no bytes.

    First in its group, of a request that holds nothing. Where nothing is known, or can be joined, it is no fault.
    """

    verb: Literal["find"] = "find"
    request: RequestKey
    token_ids: Annotated[TokenIds, Field(min_length=4)]


class Publish(Message):
    """Share the first `tokens` tokens: the plan of it. The client unmaps the windows of the answer; then `Seal`.

    Where the request's `find` named so many tokens, `find` finds the prefix from its seal on, and it stays after its
    last user, until its memory is needed.
    """

    verb: Literal["publish"] = "publish"
    request: RequestKey
    tokens: Positive


class Seal(Message):
    """The published windows are unmapped: nobody writes them any more. The answer's ticket hands them over again."""

    verb: Literal["seal"] = "seal"
    request: RequestKey
    prefix: Positive


class Join(Message):
    """Map a sealed prefix, as far as it lies inside the first `tokens` tokens of this request. Costs no bytes."""

    verb: Literal["join"] = "join"
    request: RequestKey
    prefix: Positive
    tokens: Positive


class Leave(Message):
    """The request uses the prefix no longer. `clean`: unmapped. `quarantined`: it may still be mapped there."""

    verb: Literal["leave"] = "leave"
    request: RequestKey
    prefix: Positive
    outcome: Literal["clean", "quarantined"]


class Found(Message):
    """What `find` joined: `prefix`, of which `tokens` tokens are there already, by mapping `runs` for reading.

    `known` of the tokens are known; where they are more than `tokens`, nobody shares them yet in a way that helps.
    """

    verb: Literal["found"] = "found"
    known: Count = 0
    prefix: Count = 0
    tokens: Count = 0
    runs: tuple[Run, ...] = ()


class Published(Message):
    """The windows that are to be unmapped, and the prefix that they will be."""

    verb: Literal["published"] = "published"
    prefix: Positive
    tokens: Count
    runs: tuple[Run, ...]


class Sealed(Message):
    """The windows of a published prefix, to be mapped for reading at the same place: see `Redeem`.

    Where they could not be sealed, `refusal` says why: they are the request's as before, and nobody joins them.
    """

    verb: Literal["sealed"] = "sealed"
    prefix: Positive
    runs: tuple[Run, ...]
    refusal: str | None = None


class Joined(Message):
    """The windows to map for reading, and how many tokens are there already."""

    verb: Literal["joined"] = "joined"
    prefix: Positive
    tokens: Count
    runs: tuple[Run, ...]
    additional_owned_bytes: Literal[0] = 0


class Left(Message):
    verb: Literal["left"] = "left"
