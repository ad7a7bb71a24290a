"""Names of things that cross a process boundary. Values only.

A request is named by its session, a number that the client chooses, and a generation, so that a number used
again never mixes two lives. A handle's generation tells a recycled number from its first use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple
from uuid import uuid4


def new_session() -> str:
    """A session's name: 32 hex digits, new in all the world."""
    return uuid4().hex


@dataclass(frozen=True, slots=True, order=True)
class RequestId:
    session: str
    number: int
    generation: int = 0

    def __str__(self) -> str:
        return f"{self.session[:8]}/{self.number}.{self.generation}"


@dataclass(frozen=True, slots=True, order=True)
class GrantId:
    """`number` is chosen by the client and never used twice within the session."""

    request: RequestId
    number: int


@dataclass(frozen=True, slots=True, order=True)
class HandleId:
    number: int
    generation: int


class ImportKey(NamedTuple):
    """What a client keeps an import by: sealed memory needs another descriptor than the same memory before its seal.

    A tuple, as it travels: a client names a thousand of them at once.
    """

    number: int
    generation: int
    is_sealed: bool = False

    @property
    def handle(self) -> HandleId:
        return HandleId(self.number, self.generation)


@dataclass(frozen=True, slots=True, order=True)
class WindowRun:
    """Windows [start, start + count) of one fragment of one layer group; a window is one granule of address."""

    group: int
    fragment: int
    start: int
    count: int
