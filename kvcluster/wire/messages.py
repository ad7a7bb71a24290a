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

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0, lt=2**63)]
Positive = Annotated[int, Field(ge=1, lt=2**63)]
Name = Annotated[str, Field(min_length=1, max_length=64)]

VERSION = 1


class Message(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


class RequestKey(Message):
    """A request within its session."""

    number: Count
    generation: Count = 0


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


# --- what a client asks -------------------------------------------------------------------------------------------


class Open(Message):
    """A reservation of address for at most `max_tokens` tokens; stamps the arrival number. Costs no bytes.

    `after` is an earlier request of the session, closed by now, whose arrival number this one takes over.
    """

    verb: Literal["open"] = "open"
    request: RequestKey
    groups: Annotated[tuple[Group, ...], Field(min_length=1, max_length=64)]
    max_tokens: Positive
    after: RequestKey | None = None


class Grant(Message):
    """Budget for `size_bytes`, under a number that the client chooses and never uses again in this session."""

    verb: Literal["grant"] = "grant"
    request: RequestKey
    grant: Count
    size_bytes: Positive


class GiveBack(Message):
    """A grant that will not be spent."""

    verb: Literal["give_back"] = "give_back"
    request: RequestKey
    grant: Count


class Commit(Message):
    """Windows for the first `tokens` tokens, paid by the grant; what is left of it goes back."""

    verb: Literal["commit"] = "commit"
    request: RequestKey
    grant: Count
    tokens: Positive


class Release(Message):
    """Windows back. `clean`: unmapped. `quarantined`: they may still be mapped; they stay charged."""

    verb: Literal["release"] = "release"
    request: RequestKey
    runs: Annotated[tuple[Run, ...], Field(min_length=1)]
    outcome: Literal["clean", "quarantined"]


class Close(Message):
    """The end of the request. Whatever it still holds was released before, or is quarantined now."""

    verb: Literal["close"] = "close"
    request: RequestKey


Operation = Annotated[Open | Grant | GiveBack | Commit | Release | Close, Field(discriminator="verb")]


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
    """The windows that are new, in the order in which their handles are handed over: see `Ticket`."""

    verb: Literal["committed"] = "committed"
    runs: tuple[Run, ...]


class Released(Message):
    verb: Literal["released"] = "released"
    size_bytes: Count


class Closed(Message):
    verb: Literal["closed"] = "closed"


class Fault(Message):
    """A refusal or a failure, by the name of its class in `kvcluster.errors`, with its fields."""

    verb: Literal["fault"] = "fault"
    error: Name
    fields: dict[str, Any]


Answer = Annotated[Opened | Granted | Returned | Committed | Released | Closed, Field(discriminator="verb")]


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


class Redeem(Message):
    """Hand over the descriptors of the windows that frame `seq` committed. May be asked any number of times.

    `ask` numbers the redemptions of one connection, upwards: what answers an older one is thrown away.
    """

    verb: Literal["redeem"] = "redeem"
    ask: Positive
    seq: Positive


class Heartbeat(Message):
    verb: Literal["heartbeat"] = "heartbeat"


class Handed(Message):
    """`count` descriptors come with this message, of `total` for the ticket; each handle has `handle_bytes`."""

    verb: Literal["handed"] = "handed"
    ask: Positive
    seq: Positive
    count: Count
    total: Count
    handle_bytes: tuple[Positive, ...] = ()


class NotHanded(Message):
    """The redemption is refused, and the connection lives on."""

    verb: Literal["not_handed"] = "not_handed"
    ask: Positive
    fault: Fault


SocketMessage = Annotated[
    Hello | Welcome | Redeem | Heartbeat | Handed | NotHanded | Fault, Field(discriminator="verb")
]
