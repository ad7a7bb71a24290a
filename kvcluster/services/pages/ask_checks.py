"""What is refused of asks for host pages before anything is sent or changed; as `services.ask_checks` for a device's.

Misuse is ValueError, and what does not fit a sequence's state NotAllowed. What only the host knows it refuses itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvcluster.errors import NotAllowed
from kvcluster.index.token_chain import count_of
from kvcluster.services.ask_checks import check_load, check_room, check_token_ids
from kvcluster.services.asks import Ask, End, Find, Grow, Load, Publish, Shed
from kvcluster.services.memory_state import MemoryState
from kvcluster.services.pages.asks import Fork, PageAsk, Permute, load_of, memories_of
from kvcluster.services.pages.sequence import SequencePages


def checked(asks: Sequence[Ask | PageAsk], *, block_tokens: int) -> list[PageAsk]:
    """The same asks, which can be sent together.

    Raises:
        NotAllowed: a sequence is closed, has an ask in flight or is in two of these, or an ask is for a device.
        ValueError: no tokens, more than a sequence's most, or more than a frame carries.
    """
    for_pages = [_for_pages(ask) for ask in asks]
    memories = [memory for ask in for_pages for memory in memories_of(ask)]
    if len({*memories}) < len(memories):
        raise NotAllowed(reason="a request may have one ask in flight: settle it first")
    if any(memory.state is MemoryState.CLOSED or memory.in_flight for memory in memories):
        raise NotAllowed(reason="a request may have one ask in flight, and none once it is closed")
    for ask in for_pages:
        _check_tokens(ask)
    if len(for_pages) > 1:  # one alone is smaller than what a frame carries, whatever it names
        loads = [load_of(ask, block_tokens) for ask in for_pages]
        check_load(Load(*map(sum, zip(*loads, strict=True))))
    return for_pages


def _for_pages(ask: Ask | PageAsk) -> PageAsk:
    """The same. Raises NotAllowed where it is for a device."""
    if not isinstance(ask, Grow | Find | Publish | Shed | End | Fork | Permute):
        raise NotAllowed(reason=f"{type(ask).__name__} is for a device, and these are host pages")
    return ask


def _check_tokens(ask: PageAsk) -> None:
    """Raises ValueError where the memory has no room for so many tokens, or has not so many."""
    memory: SequencePages = ask.memory
    most = memory.spec.max_tokens
    match ask:
        case Grow(tokens=tokens):
            check_room(memory, tokens, 1, most)
        case Find(token_ids=token_ids, grow_to=tokens):
            check_token_ids(memory, token_ids)
            check_room(memory, tokens, count_of(token_ids), most)
        case Publish(tokens=tokens):
            check_room(memory, tokens, 1, min(memory.tokens, memory.told.tokens))
        case Fork(tokens=tokens):
            check_room(memory, tokens, 1, memory.tokens)
        case Permute(members=members):
            _check_members(ask, members)
        case End(retain_tokens=tokens, token_ids=token_ids) if tokens:
            told = memory.told.heard + count_of(token_ids)
            check_room(memory, told, 0, most)
            check_room(memory, tokens, 0, min(memory.tokens, max(told, memory.told.there)))


def _check_members(ask: Permute, members: Sequence[SequencePages]) -> None:
    if ask.memory not in members:
        raise ValueError(f"{ask.memory.request} is permuted and is none of the members")
    if all(0 <= parent < len(members) for parent in ask.parents):
        held = min([members[parent].tokens for parent in ask.parents], default=0)
        check_room(ask.memory, ask.tokens, 1, held)
