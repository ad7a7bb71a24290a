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

from kvcluster.wire.base import Count, Name, Positive
from kvcluster.wire.base import Message as Message
from kvcluster.wire.base import RequestKey as RequestKey
from kvcluster.wire.pages import Drop as Drop
from kvcluster.wire.pages import Fork as Fork
from kvcluster.wire.pages import Forked as Forked
from kvcluster.wire.pages import Paged as Paged
from kvcluster.wire.pages import Permute as Permute
from kvcluster.wire.pages import Permuted as Permuted
from kvcluster.wire.pages import Share as Share
from kvcluster.wire.pages import Shared as Shared

VERSION = 1
MOST_KNOWN = 1_024  # imports that a client names in one redemption
MOST_FORGOTTEN = 2_048  # handles in one message: some 40 KB at most
MOST_TOKENS = 262_144  # whose ids one operation names: 1 MiB of a frame's 4

TokenIds = Annotated[bytes, Field(max_length=4 * MOST_TOKENS)]  # uint32, little-endian: `index.token_chain`
Root = Annotated[bytes, Field(max_length=32)]


class Run(Message):
    """Windows [start, start + count) of one fragment of one group."""

    group: Count
    fragment: Count
    start: Count
    count: Positive


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


class Find(Message):
    """Join the longest known prefix of these tokens, which are the request's from now on; costs no bytes.

    First in its group, of a request that holds nothing. Where nothing is known, or can be joined, it is no fault.
    """

    verb: Literal["find"] = "find"
    request: RequestKey
    token_ids: Annotated[TokenIds, Field(min_length=4)]


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
    | Close,
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


class Found(Message):
    """What `find` joined: `prefix`, of which `tokens` tokens are there already, by mapping `runs` for reading.

    `known` of the tokens are known; where they are more than `tokens`, nobody shares them yet in a way that helps.
    """

    verb: Literal["found"] = "found"
    known: Count = 0
    prefix: Count = 0
    tokens: Count = 0
    runs: tuple[Run, ...] = ()


class Left(Message):
    verb: Literal["left"] = "left"


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
    | Closed,
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


# --- what is said on the attach socket ----------------------------------------------------------------------------


class Hello(Message):
    """A client's first words on the socket; the device reads its process id from the kernel."""

    verb: Literal["hello"] = "hello"
    v: Literal[1] = 1
    session: Name


class Welcome(Message):
    """What a client must know of the device."""

    verb: Literal["welcome"] = "welcome"
    device: str
    epoch: Count
    granule_bytes: Positive
    capacity_bytes: Positive
    lease_s: float
    heartbeat_s: float
    block_tokens: Count = 0  # of host pages; 0 for a device
    blocks: Count = 0


class Redeem(Message):
    """Hand over the handles of the windows that frame `seq` committed. May be asked any number of times.

    `ask` numbers the redemptions of one connection, upwards: what answers an older one is thrown away. `known` are
    those that the client has imported already and needs no descriptor of: number, generation, and whether sealed.
    """

    verb: Literal["redeem"] = "redeem"
    ask: Positive
    seq: Positive
    known: Annotated[tuple[tuple[Count, Count, bool], ...], Field(max_length=MOST_KNOWN)] = ()


class Heartbeat(Message):
    verb: Literal["heartbeat"] = "heartbeat"


class Handed(Message):
    """The ticket's next handles, of `total`: number, generation, whether sealed, bytes, and whether a descriptor comes.

    The descriptors come with this message, in the order of their handles.
    """

    verb: Literal["handed"] = "handed"
    ask: Positive
    seq: Positive
    total: Count
    handles: tuple[tuple[Count, Count, bool, Positive, bool], ...] = ()


class NotHanded(Message):
    """The redemption is refused, and the connection lives on."""

    verb: Literal["not_handed"] = "not_handed"
    ask: Positive
    fault: Fault


class Reclaim(Message):
    """Pushed by the device: give back `size_bytes` that requests younger than arrival `younger_than` hold."""

    verb: Literal["reclaim"] = "reclaim"
    size_bytes: Positive
    younger_than: Count


class Forget(Message):
    """Pushed by the device: these handles (number, generation) are gone; an import would only hold their memory."""

    verb: Literal["forget"] = "forget"
    handles: Annotated[tuple[tuple[Count, Count], ...], Field(min_length=1, max_length=MOST_FORGOTTEN)]


Push = Reclaim | Forget

SocketMessage = Annotated[
    Hello | Welcome | Redeem | Heartbeat | Handed | NotHanded | Reclaim | Forget | Fault, Field(discriminator="verb")
]
