"""What can be refused of asks before anything is sent or changed: what stands beside what, and their figures.

Misuse is ValueError, and what does not fit a memory's state NotAllowed. What only the owner knows it refuses itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvcluster.errors import KvClusterError, NotAllowed
from kvcluster.index.token_chain import count_of
from kvcluster.services.asks import (
    MOST,
    MOST_PREFIXES,
    Adopt,
    Ask,
    End,
    Find,
    Grow,
    Join,
    Load,
    Publish,
    ReturnGrant,
    Seal,
    Shed,
    Spend,
    TakeSnapshot,
    Trim,
    load_of,
)
from kvcluster.services.memory_state import MemoryState
from kvcluster.services.sequence import SequenceMemory
from kvcluster.wire.messages import MOST_TOKENS

if TYPE_CHECKING:
    from kvcluster.services.kv_port import KvMemory


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
    if holdings.takes_windows or not isinstance(ask, Grow | Spend | Join | Find | Adopt | TakeSnapshot | Publish):
        return None
    state = "torn: a prefix that it used is gone" if holdings.usable.is_torn else "quarantined"
    return NotAllowed(reason=f"the memory is {state}, and takes no more commits")


def _check_tokens(ask: Ask) -> None:
    most = ask.memory.spec.max_tokens
    match ask:
        case Grow(tokens=tokens) | Spend(tokens=tokens) | Join(tokens=tokens) | Find(grow_to=tokens):
            bounds = (1, most)
        case Trim(tokens=tokens):
            bounds = (0, most)
        case TakeSnapshot(tokens=tokens) | Publish(tokens=tokens) if not ask.memory.holdings.usable.is_torn:
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
    if not tokens <= written <= memory.tokens and not memory.holdings.usable.is_torn:
        known = f"{tokens} are to be published and {memory.tokens} are committed"
        raise ValueError(f"{memory.request} cannot have {written} tokens written: {known}")
