"""What a client says to the next incarnation of its device: what it has mapped since an earlier one.

A device that was restarted knows nobody's windows; its clients go on with theirs. Each open request is said again, by
`open` and a `register`, before anything else is asked for it, and `complete` says that this was all.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kvcluster.wire.base import Count, Message, Name, Positive, RequestKey, Run

MOST_OLD_PREFIXES = 1024
MOST_GIVEN_UP = 64


class OldPrefix(Message):
    """A prefix that the request still reads: the epoch of the incarnation that made it, its number, windows here."""

    epoch: Count
    prefix: Positive
    runs: Annotated[tuple[Run, ...], Field(min_length=1)]


class Register(Message):
    """What is mapped for a request that an earlier incarnation opened with `arrival`, and that holds nothing here yet.

    `runs` are its own, `prefixes` those that it uses, newest last. Charged as foreign; nothing of it can be shared.
    """

    verb: Literal["register"] = "register"
    request: RequestKey
    arrival: Count
    runs: tuple[Run, ...] = ()
    prefixes: Annotated[tuple[OldPrefix, ...], Field(max_length=MOST_OLD_PREFIXES)] = ()


class Complete(Message):
    """Everything that the session's process has mapped is registered, but for `kept_bytes` that it could not unmap.

    `request` is number 0, which no request has. `given_up` are earlier sessions of this process, of which nothing is
    mapped any more, and whose owner may not have heard so.
    """

    verb: Literal["complete"] = "complete"
    request: RequestKey = RequestKey(number=0)
    kept_bytes: Count = 0
    given_up: Annotated[tuple[Name, ...], Field(max_length=MOST_GIVEN_UP)] = ()


class Registered(Message):
    """The request is open, with this arrival number: its own, unless somebody has that."""

    verb: Literal["registered"] = "registered"
    arrival: Count = 0
