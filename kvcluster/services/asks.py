"""What a client asks of its device, one value a request, and which asks may share a frame.

    Grow        more windows: a grant and its commit in one group (and `open` first, where the request is new)
    Find        what is known of a prompt, and more windows of its own, in one group
    Join        a prefix's windows, and with `grow_to` more windows of its own, in one group
    AskGrant, Spend, ReturnGrant    a verb at a time
    TakeSnapshot, Publish, Seal     the three steps of a prefix (the first where there are rings), each in its own frame
    Leave       every prefix left
    Shed        every window back and every prefix left; the request stays open and keeps its arrival number
    End         the same, and the end of the request

The client's half of Seal, Leave, Shed and End is done before the frame is made: what the device hears is what has
happened. How asks become operations is in `services.encoding`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from kvcluster.driver.protocol import Fence
from kvcluster.errors import KvClusterError, NotAllowed
from kvcluster.index.token_chain import count_of
from kvcluster.services.prefix import Prefix
from kvcluster.services.sequence import Grant, MemoryState, SequenceMemory
from kvcluster.wire.messages import MOST_TOKENS

if TYPE_CHECKING:
    from kvcluster.services.kv_port import KvMemory
    from kvcluster.services.pages.asks import Fork, Permute

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


Ask = Grow | Find | Join | AskGrant | Spend | ReturnGrant | TakeSnapshot | Publish | Seal | Leave | Shed | End


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


def check(asks: Sequence[Ask]) -> None:
    """`asks` can be sent together.

    Raises:
        NotAllowed: a memory is closed or leaving, has a plan to seal, or has an ask in flight already.
        ValueError: no tokens, more than a memory's most, or more than a frame carries.
    """
    memories = [ask.memory for ask in asks]
    if len(set(memories)) != len(memories) or any(memory.in_flight for memory in memories):
        raise NotAllowed(reason="a request may have one ask in flight: settle it first")
    check_load(load_of(*asks))
    for ask in asks:
        _check_state(ask)
        _check_tokens(ask)


def check_load(load: Load) -> None:
    """Raises ValueError where it is more than a frame carries."""
    if not load.fits(MOST):
        limits = (
            f"{MOST.asks} asks, {MOST.operations} operations, {MOST.runs} runs of windows and {MOST.id_bytes // 4} ids"
        )
        raise ValueError(f"a frame carries at most {limits}: use several")


def _check_state(ask: Ask) -> None:
    memory, holdings = ask.memory, ask.memory.holdings
    if memory.state is MemoryState.CLOSED:
        raise NotAllowed(reason="the memory is closed")
    if memory.is_leaving and not isinstance(ask, Shed | End):
        raise NotAllowed(reason="the memory is given back once its work is done: it takes no asks")
    if isinstance(ask, Seal) != (holdings.publication is not None) and not isinstance(ask, Shed | End | ReturnGrant):
        raise NotAllowed(reason="what is published is sealed next, and nothing else is")


def refusal_of(ask: Ask) -> KvClusterError | None:
    """Why the ask is of no use now, whatever the device says: its memory can have no more windows, or prefixes."""
    holdings = ask.memory.holdings
    if isinstance(ask, TakeSnapshot | Publish) and holdings.prefix_count >= MOST_PREFIXES:
        return NotAllowed(reason=f"a request uses at most {MOST_PREFIXES} prefixes, and this one does")
    if holdings.takes_windows or not isinstance(ask, Grow | Spend | Join | Find | TakeSnapshot | Publish):
        return None
    state = "torn: a prefix that it used is gone" if holdings.is_torn else "quarantined"
    return NotAllowed(reason=f"the memory is {state}, and takes no more commits")


def _check_tokens(ask: Ask) -> None:
    most = ask.memory.spec.max_tokens
    match ask:
        case Grow(tokens=tokens) | Spend(tokens=tokens) | Join(tokens=tokens) | Find(grow_to=tokens):
            bounds = (1, most)
        case TakeSnapshot(tokens=tokens) | Publish(tokens=tokens) if not ask.memory.holdings.is_torn:
            bounds = (1, ask.memory.tokens)
        case End(retain_tokens=tokens):
            bounds = (0, ask.memory.tokens)
        case _:
            return
    check_room(ask.memory, tokens, *bounds)
    if isinstance(ask, End) and tokens:
        check_more_ids(ask.memory, ask.token_ids)
    if isinstance(ask, Find):
        check_token_ids(ask.memory, ask.token_ids)
    if isinstance(ask, Join) and ask.grow_to is not None:
        check_room(ask.memory, ask.grow_to, 1, most)
    if isinstance(ask, TakeSnapshot):
        check_written(ask.memory, tokens, ask.written)


def check_room(memory: KvMemory, tokens: int, least: int, most: int) -> None:
    """Raises ValueError where `tokens` do not lie in [least, most]."""
    if not least <= tokens <= most:
        raise ValueError(f"{memory.request} has room for {least} to {most}, not {tokens} tokens")


def check_token_ids(memory: KvMemory, token_ids: bytes) -> None:
    """Raises ValueError where these are no ids, none, or more than the memory's most or than an operation names."""
    check_room(memory, count_of(token_ids), 1, min(memory.spec.max_tokens, MOST_TOKENS))


def check_more_ids(memory: SequenceMemory, token_ids: bytes) -> None:
    """Raises ValueError where these are no ids, or more than the memory's most with those that were told before."""
    check_room(memory, memory.told.heard + count_of(token_ids), 0, memory.spec.max_tokens)


def check_written(memory: SequenceMemory, tokens: int, written: int) -> None:
    """Raises ValueError where `written` tokens cannot have been computed, or not all of the first `tokens` were."""
    if not tokens <= written <= memory.tokens and not memory.holdings.is_torn:
        known = f"{tokens} are to be published and {memory.tokens} are committed"
        raise ValueError(f"{memory.request} cannot have {written} tokens written: {known}")


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
        case Shed() | End():
            return memory.returnable_runs
        case Join(grow_to=int()) | Find():
            return 2 * memory.fragments
        case _:
            return memory.fragments


def _prefixes(memory: SequenceMemory) -> int:
    return memory.holdings.prefix_count


def _id_bytes(ask: Ask) -> int:
    return len(ask.token_ids) if isinstance(ask, Find | End) else 0
