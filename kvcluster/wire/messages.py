"""The verbs, as typed values: what a client asks and what a device answers.

One table for Ray, the attach socket and LocalDevice alike (docs/ARCHITECTURE.md, "Messages"). Every message is
strict and frozen; unknown fields are refused. A frame belongs to one session and carries the operations of any
number of requests; operations on one request stand next to each other and form a *group* that is done whole or
not at all, with a result of its own. `open` is a group by itself: it costs nothing, so a request that is refused
its first grant stays open and keeps its arrival number.

Bytes on the wire are made in `wire.codec`; how errors travel is in `wire.faults`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from kvcluster.wire.adopt import Adopt as Adopt
from kvcluster.wire.adopt import Adopted as Adopted
from kvcluster.wire.base import MOST_TOKENS as MOST_TOKENS
from kvcluster.wire.base import Count, Name, Positive, Root, TokenIds
from kvcluster.wire.base import Message as Message
from kvcluster.wire.base import RequestKey as RequestKey
from kvcluster.wire.base import Run as Run
from kvcluster.wire.pages import Drop as Drop
from kvcluster.wire.pages import Fork as Fork
from kvcluster.wire.pages import Forked as Forked
from kvcluster.wire.pages import Paged as Paged
from kvcluster.wire.pages import Permute as Permute
from kvcluster.wire.pages import Permuted as Permuted
from kvcluster.wire.pages import Share as Share
from kvcluster.wire.pages import Shared as Shared
from kvcluster.wire.prefixes import Find as Find
from kvcluster.wire.prefixes import Found as Found
from kvcluster.wire.prefixes import Join as Join
from kvcluster.wire.prefixes import Joined as Joined
from kvcluster.wire.prefixes import Leave as Leave
from kvcluster.wire.prefixes import Left as Left
from kvcluster.wire.prefixes import Publish as Publish
from kvcluster.wire.prefixes import Published as Published
from kvcluster.wire.prefixes import Seal as Seal
from kvcluster.wire.prefixes import Sealed as Sealed
from kvcluster.wire.restart import Complete as Complete
from kvcluster.wire.restart import OldPrefix as OldPrefix
from kvcluster.wire.restart import Register as Register
from kvcluster.wire.restart import Registered as Registered

VERSION = 1


class Group(Message):
    """The shape of one layer group: see `geometry.residency.GroupShape`."""

    fragments: Positive
    stride_bytes: Positive
    keeps: Literal["every", "ring", "snapshot"] = "every"
    windows: Count = 0


# --- what a client asks -------------------------------------------------------------------------------------------


class Open(Message):
    """A reservation of address for at most `max_tokens` tokens; stamps the arrival number. Costs no bytes.

    `after` is an earlier request of the session, closed by now, whose arrival number this one takes over. What it
    holds is its `tenant`'s. Windows below `shareable_tokens` get handles of one granule each; longer runs beyond get
    bulk handles, where the device has any. What `find` may find for it was written under the same `cache_root`
    (`index.identity`); without one nothing is found for it, and nothing of it.
    """

    verb: Literal["open"] = "open"
    request: RequestKey
    groups: Annotated[tuple[Group, ...], Field(min_length=1, max_length=64)]
    max_tokens: Positive
    after: RequestKey | None = None
    tenant: Annotated[str, Field(max_length=64)] = ""
    shareable_tokens: Count = 0
    cache_root: Root = b""


class Grant(Message):
    """Budget for `size_bytes`, under a number that the client chooses and never uses again in this session.

    With `tokens`, budget for what a commit of so many tokens lacks now, beside a join of the same group, say: only the
    device knows how far whole handles reach. `size_bytes` is what the client expects then.
    """

    verb: Literal["grant"] = "grant"
    request: RequestKey
    grant: Count
    size_bytes: Positive
    tokens: Count = 0


class GiveBack(Message):
    """A grant that will not be spent."""

    verb: Literal["give_back"] = "give_back"
    request: RequestKey
    grant: Count


class Commit(Message):
    """Windows for the first `tokens` tokens, paid by the grant; what is left of it goes back.

    With `snapshot`, also all windows of the request's snapshots.
    """

    verb: Literal["commit"] = "commit"
    request: RequestKey
    grant: Count
    tokens: Positive
    snapshot: bool = False


class Release(Message):
    """Windows back. `clean`: unmapped. `quarantined`: they may still be mapped; they stay charged."""

    verb: Literal["release"] = "release"
    request: RequestKey
    runs: Annotated[tuple[Run, ...], Field(min_length=1)]
    outcome: Literal["clean", "quarantined"]


class Close(Message):
    """The end of the request. Whatever it still holds was released or left before, or is quarantined now.

    With `retain_tokens`, what lies wholly inside so many tokens stays, for whoever joins it, until its memory is
    needed: windows that were in no release, which are unmapped, and prefixes that were left clean in the same group.
    What stays of a request that has a `cache_root` is found by `find` from now on; `token_ids` follow the `told_tokens`
    ids that were named before, by its own `find`. Where the owner has another number of them, it refuses.
    """

    verb: Literal["close"] = "close"
    request: RequestKey
    retain_tokens: Count = 0
    token_ids: TokenIds = b""
    told_tokens: Count = 0


Operation = Annotated[
    Open
    | Find
    | Grant
    | GiveBack
    | Commit
    | Release
    | Publish
    | Seal
    | Join
    | Leave
    | Fork
    | Permute
    | Share
    | Drop
    | Close
    | Adopt
    | Register
    | Complete,
    Field(discriminator="verb"),
]


class Frame(Message):
    """What one message carries. `ack`: every reply up to this seq was received; 0 = none yet. Seqs begin at 1."""

    v: Literal[1] = 1
    session: Name
    seq: Positive
    ack: Count
    epoch: Count
    ops: Annotated[tuple[Operation, ...], Field(min_length=1, max_length=4096)]


# --- what a device answers ----------------------------------------------------------------------------------------


class Opened(Message):
    verb: Literal["opened"] = "opened"
    arrival: Count


class Granted(Message):
    """The grant is held for `expires_s` seconds from now."""

    verb: Literal["granted"] = "granted"
    expires_s: float


class Returned(Message):
    verb: Literal["returned"] = "returned"


class Committed(Message):
    """The windows that are new, in the order in which their handles are handed over: see `Redeem`."""

    verb: Literal["committed"] = "committed"
    runs: tuple[Run, ...]


class Released(Message):
    verb: Literal["released"] = "released"
    size_bytes: Count


class Closed(Message):
    """`prefix` is the newest that stays for others, if any does: it begins with the request's first `tokens` tokens."""

    verb: Literal["closed"] = "closed"
    prefix: Positive | None = None
    tokens: Count = 0


class Fault(Message):
    """A refusal or a failure, by the name of its class in `kvcluster.errors`, with its fields."""

    verb: Literal["fault"] = "fault"
    error: Name
    fields: dict[str, Any]


Answer = Annotated[
    Opened
    | Granted
    | Returned
    | Committed
    | Released
    | Published
    | Sealed
    | Joined
    | Found
    | Left
    | Paged
    | Forked
    | Permuted
    | Shared
    | Closed
    | Adopted
    | Registered,
    Field(discriminator="verb"),
]


class GroupResult(Message):
    """One group's outcome: an answer an operation, or one fault and nothing done."""

    request: RequestKey
    answers: tuple[Answer, ...] = ()
    fault: Fault | None = None


class Reply(Message):
    """Either one result a group, in the frame's order, or a fault for the whole frame (nothing was executed)."""

    v: Literal[1] = 1
    session: Name
    seq: Positive
    epoch: Count
    results: tuple[GroupResult, ...] = ()
    fault: Fault | None = None
