"""Whom the device asks to give memory back, when an older request is refused: younger running requests of others.

The actor of the refused request takes from its own younger ones by itself (`services.request.wait_die`); what other
actors hold only the device knows. It asks each session once, for what is missing, and not again before that session
gave something back or the one that it asked for was served. Asking is all it does: nobody is forced.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from kvcluster.ids import RequestId


class Holder(Protocol):
    """An open request, as one that waits or that could make room."""

    request: RequestId
    arrival: int
    tenant: str

    @property
    def held_bytes(self) -> int:
        """What it pays for."""

    @property
    def shares(self) -> bool:
        """Whether it uses what others may use too."""

    @property
    def freed_bytes(self) -> int:
        """What its end would free."""

    def growth_bytes(self, tokens: int) -> int:
        """The most that so many more tokens can take."""


@dataclass(frozen=True, slots=True)
class Plea:
    """Give back `size_bytes` that requests younger than arrival `younger_than` hold, or alone share."""

    size_bytes: int
    younger_than: int


class Pressure:
    """What is asked of each session, and what it has not heard yet."""

    def __init__(self) -> None:
        self._asked: dict[str, Plea] = {}
        self._unheard: dict[str, Plea] = {}

    def refused(self, asker: Holder, missing_bytes: int, others: Iterable[Holder]) -> None:
        """`asker` lacks so much; `others` are those whose memory would help it."""
        missing_bytes -= sum(plea.size_bytes for plea in self._asked.values())
        shares: dict[str, int] = {}
        for victim in sorted(others, key=lambda other: other.arrival, reverse=True):
            if missing_bytes <= 0 or victim.arrival < asker.arrival:
                break
            session = victim.request.session
            if session == asker.request.session or session in self._asked:
                continue
            if freed_bytes := victim.freed_bytes:
                shares[session] = shares.get(session, 0) + min(freed_bytes, missing_bytes)
                missing_bytes -= freed_bytes
        for session, size_bytes in shares.items():
            self._asked[session] = self._unheard[session] = Plea(size_bytes, asker.arrival)

    def eased(self, session: str) -> None:
        """It gave something back, or has ended."""
        self._asked.pop(session, None)
        self._unheard.pop(session, None)

    def served(self, arrival: int) -> None:
        """Whoever was refused has what it wanted, or wants nothing any more."""
        for session in [name for name, plea in self._asked.items() if plea.younger_than == arrival]:
            self.eased(session)

    def drain(self, session: str) -> Plea | None:
        """What the session is to be told now."""
        return self._unheard.pop(session, None)

    def waiting(self) -> tuple[str, ...]:
        """The sessions that are to be told something."""
        return tuple(self._unheard)
