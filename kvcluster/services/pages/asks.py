"""What only host pages can be asked, beside the asks of `services.asks`."""

from __future__ import annotations

from dataclasses import dataclass

from kvcluster.services.pages.sequence import SequencePages


@dataclass(frozen=True, slots=True)
class Fork:
    """`children`, new ones of the same port, go on from the first `tokens` tokens of `memory`. All or none.

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
