"""What a client asks of its device, one value a request, and which asks may share a frame.

    Grow        more windows: a grant and its commit in one group (and `open` first, where the request is new)
    Find        what is known of a prompt, and more windows of its own, in one group
    Adopt       all that a process left which died with the same work, and the place in the queue
    Join        a prefix's windows, and with `grow_to` more windows of its own, in one group
    AskGrant, Spend, ReturnGrant    a verb at a time
    TakeSnapshot, Publish, Seal     the three steps of a prefix (the first where there are rings), each in its own frame
    Leave       every prefix left
    Trim        the windows behind its first tokens back
    Shed        every window back and every prefix left; the request stays open and keeps its arrival number
    End         the same, and the end of the request

The client's half of Seal, Leave, Trim, Shed and End is done before the frame is made: what the device hears is what has
happened. How asks become operations is in `services.encoding`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from kvcluster.driver.protocol import Fence
from kvcluster.errors import KvClusterError
from kvcluster.index.token_chain import ID_BYTES
from kvcluster.services.prefix import Prefix
from kvcluster.services.progress_page import MOST_IDS
from kvcluster.wire.messages import MOST_TOKENS

if TYPE_CHECKING:
    from kvcluster.services.pages.asks import Fork, Permute
    from kvcluster.services.sequence import Grant, SequenceMemory

MOST_ASKS = 1024  # in one frame
MOST_OPERATIONS = 4096  # in one frame, as the wire has it
MOST_RUNS = 32_768  # of windows, in one frame or reply: at most 1.5 of its 4 MiB, so that 4,095 refusals fit beside
MOST_ID_BYTES = 4 * MOST_TOKENS  # of token ids, in one frame
MOST_PREFIXES = 1024  # that one request uses: leaving them all takes an operation each, of one frame


Memory = Any  # a SequenceMemory, or services.pages.sequence.SequencePages: each port takes its own


class Load(NamedTuple):
    """What of a frame, or of its reply, asks take at most; `runs` are of windows, `id_bytes` of token ids."""

    asks: int = 0
    operations: int = 0
    runs: int = 0
    id_bytes: int = 0

    def with_more(self, more: Load) -> Load:
        return Load(*(mine + its for mine, its in zip(self, more, strict=True)))

    def fits(self, most: Load) -> bool:
        return all(mine <= its for mine, its in zip(self, most, strict=True))


MOST = Load(MOST_ASKS, MOST_OPERATIONS, MOST_RUNS, MOST_ID_BYTES)


@dataclass(frozen=True, slots=True)
class Grow:
    """Windows for the first `tokens` tokens, paid by a new grant. Says nothing to the device where all are there."""

    memory: Memory
    tokens: int


@dataclass(frozen=True, slots=True)
class Find:
    """Windows for `grow_to` tokens, of which the longest known prefix of `token_ids` is joined; holds nothing yet.

    `token_ids` are uint32 (`index.token_chain.packed`), the request's own, prompt first. With nothing known it is as a
    Grow. Where this process then cannot map the growth, the growth goes back and the prefix stays joined.
    """

    memory: Memory
    token_ids: bytes
    grow_to: int


@dataclass(frozen=True, slots=True)
class Adopt:
    """What one of `sessions`, newest first, computed under `label` before its process died; holds nothing yet.

    That there is nothing is no error: see `Outcome.adoption`. Where this process then cannot map it, it is given back.
    """

    memory: Memory
    sessions: tuple[str, ...]
    label: bytes


@dataclass(frozen=True, slots=True)
class Join:
    """`prefix`, as far as it lies inside the first `tokens` tokens of a request that holds nothing.

    With `grow_to` also windows for so many tokens. The device gives both or neither; where this process then cannot map
    the growth, the growth goes back and the prefix stays joined: see `Outcome.joined_tokens`.
    """

    memory: SequenceMemory
    prefix: Prefix
    tokens: int
    grow_to: int | None = None


@dataclass(frozen=True, slots=True)
class AskGrant:
    memory: SequenceMemory
    grant: Grant


@dataclass(frozen=True, slots=True)
class Spend:
    memory: SequenceMemory
    tokens: int
    grant: Grant


@dataclass(frozen=True, slots=True)
class ReturnGrant:
    memory: SequenceMemory
    grant: Grant


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """The window before the end of a prefix of `tokens` tokens, copied out of rings that hold `written`."""

    memory: SequenceMemory
    tokens: int
    written: int


@dataclass(frozen=True, slots=True)
class Publish:
    """The plan of sharing the first `tokens` tokens. The next ask of this memory is Seal, Shed or End."""

    memory: Memory
    tokens: int


@dataclass(frozen=True, slots=True)
class Seal:
    """What was published is unmapped, sealed, and mapped for reading."""

    memory: SequenceMemory


@dataclass(frozen=True, slots=True)
class Leave:
    memory: SequenceMemory


@dataclass(frozen=True, slots=True)
class Trim:
    """What lies behind the first `tokens` tokens goes back: whole handles, and none of a prefix or a snapshot.

    What a ring holds of later tokens is of no use any more. Where a window could not be unmapped (Quarantined) it stays
    charged, and the memory takes no more commits.
    """

    memory: SequenceMemory
    tokens: int


@dataclass(frozen=True, slots=True)
class Shed:
    """`after`: work that was waited for already; else the driver's work is waited for."""

    memory: Memory
    after: Fence | None = None


@dataclass(frozen=True, slots=True)
class End:
    """The whole granules of the first `retain_tokens` tokens stay on the device: see `SequenceMemory.close`.

    With `token_ids`, those that follow what its last Find that succeeded named, Find finds them.
    """

    memory: Memory
    retain_tokens: int = 0
    token_ids: bytes = b""


Ask = (
    Grow
    | Find
    | Adopt
    | Join
    | AskGrant
    | Spend
    | ReturnGrant
    | TakeSnapshot
    | Publish
    | Seal
    | Leave
    | Trim
    | Shed
    | End
)


@dataclass(frozen=True, slots=True)
class Adoption:
    """What was found for an Adopt: see `wire.adopt.Adopted`. With "adopted" the first `tokens` tokens are there."""

    what: Literal["adopted", "said", "living", "nothing"] = "nothing"
    tokens: int = 0
    computed: int = 0
    token_ids: bytes = b""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an ask: done, or the refusal or failure with the state that its docstring gives.

    `prefix` is what a Seal shared, or an End left for others. `joined_tokens` came with the prefix of a Join or Find,
    which is mapped where they are more than 0, even where an `error` says that the growth beside it is not.
    `known_tokens` of a Find's tokens are known on the device, shared or not.
    """

    ask: Ask | Fork | Permute
    error: KvClusterError | None = None
    prefix: Prefix | None = None
    joined_tokens: int = 0
    known_tokens: int = 0
    adoption: Adoption | None = None


def load_of(*asks: Ask) -> Load:
    """The most that the frame, or its reply, says for these."""
    return Load(len(asks), sum(map(_operations, asks)), sum(map(_runs, asks)), sum(map(_id_bytes, asks)))


def _operations(ask: Ask) -> int:
    """Of what is unmapped and of what is not a release each; a leave for each prefix; and `open` and `close`."""
    match ask:
        case Leave() | Shed():
            return 2 + _prefixes(ask.memory)
        case End():
            return 3 + _prefixes(ask.memory)
        case Join() | Find():
            return 4
        case _:
            return 3


def _runs(ask: Ask) -> int:
    memory: SequenceMemory = ask.memory
    match ask:
        case Trim() | Shed() | End():
            return memory.returnable_runs
        case Join(grow_to=int()) | Find() | Adopt():
            return 2 * memory.fragments
        case _:
            return memory.fragments


def _prefixes(memory: SequenceMemory) -> int:
    return memory.holdings.prefix_count


def _id_bytes(ask: Ask) -> int:
    if isinstance(ask, Adopt):  # in the reply
        most_tokens: int = ask.memory.spec.max_tokens
        return ID_BYTES * min(most_tokens, MOST_IDS)
    return len(ask.token_ids) if isinstance(ask, Find | End) else 0
