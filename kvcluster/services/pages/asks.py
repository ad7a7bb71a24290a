"""What host pages can be asked: some of the asks of `services.asks`, and two that only they have."""

from __future__ import annotations

from dataclasses import dataclass

from kvcluster.services.asks import Ask, End, Find, Grow, Load, Publish, Shed
from kvcluster.services.pages.sequence import SequencePages
from kvcluster.units import ceil_div


@dataclass(frozen=True, slots=True)
class Fork:
    """`children`, new ones of the same port, go on from the first `tokens` tokens of `memory`. All or none.

    Where it is refused the children are closed, and nothing was ever held by them.
    Whoever writes next commits first: see `SequencePages.tokens`, which ends at the fork.
    """

    memory: SequencePages
    children: tuple[SequencePages, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class Permute:
    """Member i goes on from the first `tokens` tokens of member `parents[i]`; `memory` is one of them."""

    memory: SequencePages
    members: tuple[SequencePages, ...]
    parents: tuple[int, ...]
    tokens: int


PageAsk = Grow | Find | Publish | Shed | End | Fork | Permute


def memories_of(ask: PageAsk) -> tuple[SequencePages, ...]:
    """All sequences whose tables it may change."""
    match ask:
        case Fork(parent, children):
            return (parent, *children)
        case Permute(members=members):
            return members
    memory: SequencePages = ask.memory
    return (memory,)


def load_of(ask: Ask | PageAsk, block_tokens: int) -> Load:
    """The most that a frame, or its reply, says for it: a block that it names is no more than a run of windows."""
    blocks = 0
    match ask:
        case Grow(memory, tokens) | Find(memory, _, tokens):
            blocks = max(0, ceil_div(tokens, block_tokens) - len(memory.blocks)) + 1  # and a copy of one
    return Load(1, 4, blocks, len(ask.token_ids) if isinstance(ask, Find | End) else 0)
