"""Whether a model's replicas have room, by what they said of late: a gateway that knows asks them for no refusal.

A replica refuses by itself whatever is too many (`services.request.door`), but the way there and back takes more of the
cores than a small model's answer: measured on two busy ones, 18 ms in the gateway and 10 in the replica, and under
overload that is taken from the model. So once a replica has said that it is busy, only as many texts are let through as
have ended since, and one request every `PROBE_S` beside them: if that one begins, there is room again. Requests for
fewer texts than were refused may fit, and go. Nothing is assumed of how many replicas there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from actors.openai.places import Full
from kvcluster.services.completion import BUSY, Begun, Refused, Said
from kvcluster.services.pacing import Pace

PROBE_S = 0.5


class Crowding:
    """Of one model, as one gateway sees it. `clock` gives seconds."""

    def __init__(self, pace: Pace, clock: Callable[[], float]) -> None:
        self._pace = pace
        self._clock = clock
        self._full_for: int | None = None  # so many texts, and more
        self._ended = 0  # texts, since a replica was full, whose room nobody has been let into
        self._probe_at = 0.0

    @contextmanager
    def visit(self, texts: int) -> Iterator[Visit]:
        """A request for so many texts goes to a replica, in the block.

        Raises:
            Full: there is no room. Nothing changed but that its place in time is taken.
        """
        visit = Visit(self, texts, is_probe=self._let_through(texts))
        try:
            yield visit
        finally:
            if not visit.was_refused:
                self._ended += texts
                for _ in range(texts):
                    self._pace.ended(is_short=self._full_for is not None)

    def busy(self, texts: int) -> None:
        """A replica had no room for so many."""
        self._full_for = min(texts, self._full_for or texts)
        self._ended = 0
        self._probe_at = self._clock() + PROBE_S

    def roomy(self) -> None:
        """A replica had room for more than has ended."""
        self._full_for = None

    def _let_through(self, texts: int) -> bool:
        """Whether it is to find out if there is room; raises Full."""
        if self._full_for is None or texts < self._full_for:
            return False
        if self._ended >= texts:
            self._ended -= texts
            return False
        if self._clock() >= self._probe_at:
            self._probe_at = self._clock() + PROBE_S
            return True
        raise Full(self._pace.place(texts, behind=0))


class Visit:
    """One request at a replica."""

    def __init__(self, crowding: Crowding, texts: int, *, is_probe: bool) -> None:
        self.was_refused = False
        self._crowding = crowding
        self._texts = texts
        self._is_probe = is_probe

    def heard(self, said: Said) -> None:
        """What the replica says of it."""
        if isinstance(said, Refused):
            self.was_refused = True
            if said.code == BUSY:
                self._crowding.busy(self._texts)
        elif isinstance(said, Begun) and self._is_probe:
            self._crowding.roomy()
