"""What is said on the attach socket: who is there, descriptors for what frames committed, and what is told unasked.

Frames themselves go another way (`wire.messages`), but where there is no Ray. A hello makes a session, and its
connection is that session's life; what may be larger is bounded so that a message stays one packet.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kvcluster.wire.base import Count, Message, Name, Positive
from kvcluster.wire.messages import Fault

MOST_KNOWN = 1_024  # imports that a client names in one redemption
MOST_FORGOTTEN = 2_048  # handles in one message: some 40 KB at most


class Hello(Message):
    """A client's first words on the socket; the device reads its process id from the kernel."""

    verb: Literal["hello"] = "hello"
    v: Literal[1] = 1
    session: Annotated[Name, Field(pattern="^[^/]*$")]  # accounts are named after it, with more behind a slash


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
    """Hand over the handles of the windows that frame `seq` committed. May be asked any number of times. Frame 0 stands
    for the session's progress page, where a device has such pages: `services.progress_page`.

    `ask` numbers the redemptions of one connection, upwards: what answers an older one is thrown away. `known` are
    those that the client has imported already and needs no descriptor of: number, generation, and whether sealed.
    """

    verb: Literal["redeem"] = "redeem"
    ask: Positive
    seq: Count
    known: Annotated[tuple[tuple[Count, Count, bool], ...], Field(max_length=MOST_KNOWN)] = ()


class Heartbeat(Message):
    verb: Literal["heartbeat"] = "heartbeat"


class Surrender(Message):
    """The client has nothing of its session mapped any more, and never will: all of it is free, the session is over.

    Its last words: the device closes the connection when it has read them. Said after `fenced`, and as a goodbye.
    """

    verb: Literal["surrender"] = "surrender"


class Handed(Message):
    """The ticket's next handles, of `total`: number, generation, whether sealed, bytes, and whether a descriptor comes.

    The descriptors come with this message, in the order of their handles.
    """

    verb: Literal["handed"] = "handed"
    ask: Positive
    seq: Count
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


class Fenced(Message):
    """Pushed by the device: `session` is over for it, though its process lives: its lease has ended.

    Its frames and redemptions are refused (SessionEnded). What it has mapped is nobody's until it says surrender, or
    its process ends.
    """

    verb: Literal["fenced"] = "fenced"
    session: Name


Push = Reclaim | Forget | Fenced

SocketMessage = Annotated[
    Hello | Welcome | Redeem | Heartbeat | Surrender | Handed | NotHanded | Reclaim | Forget | Fenced | Fault,
    Field(discriminator="verb"),
]
