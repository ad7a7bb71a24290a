"""Whether a model's replicas have room, by what they said of late: a gateway that knows asks them for no refusal.

A replica refuses by itself whatever is too many (`services.request.door`), but the way there and back takes more of the
cores than a small model's answer: measured on two busy ones, 18 ms in the gateway and 10 in the replica, and under
overload that is taken from the model. So once a replica has said that it is busy, only as many texts are let through as
have ended since, and one request every `PROBE_S` beside them: if that one begins, there is room again. Requests for
fewer texts than were refused may fit, and go. Nothing is assumed of how many replicas there are.

Who is let in beside the places that came free takes room that nobody has counted, and leaves none that is. Once nobody
is inside any more all is forgotten: whoever comes next goes, and what fills the replicas then is another gateway's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum

from actors.openai.places import Full
from actors.openai.seams import Unavailable
from kvcluster.services.completion import BUSY, Begun, Refused, Said
from kvcluster.services.pacing import Pace

PROBE_S = 0.5


class LetIn(Enum):
    """Why one goes to a replica."""

    ROOM = "there is room"
    PLACE = "of somebody who has ended"
    FEWER = "it asks for fewer texts than were refused"
    PROBE = "to find out"


class Crowding:
    """Of one model, as one gateway sees it. `clock` gives seconds."""

    def __init__(self, pace: Pace, clock: Callable[[], float]) -> None:
        self._pace = pace
        self._clock = clock
        self._inside = 0  # texts, let through and not over
        self._full_for: int | None = None  # so many texts, and more
        self._places = 0  # texts that have ended since a replica was full, and that nobody was let in for
        self._beside: set[Visit] = set()  # let in since then without a place
        self._probe_at = 0.0
        self.free_bytes: int | None = None  # of memory, by the refusal that it goes by, where that was short of some

    @contextmanager
    def visit(self, texts: int) -> Iterator[Visit]:
        """A request for so many texts goes to a replica, in the block.

        Raises:
            Full: there is no room. Nothing changed but that its place in time is taken.
        """
        visit = Visit(self, texts, self._let_in(texts))
        if visit.why in (LetIn.FEWER, LetIn.PROBE):
            self._beside.add(visit)
        self._inside += texts
        try:
            yield visit
        except Unavailable:
            visit.is_lost = True
            raise
        finally:
            self._inside -= texts
            self._left(visit)

    def busy(self, texts: int, free_bytes: int | None) -> None:
        """A replica had no room for so many."""
        self._full_for = min(texts, self._full_for or texts)
        self.free_bytes = free_bytes
        self._places = 0
        self._beside.clear()
        self._probe_at = self._clock() + PROBE_S

    def roomy(self) -> None:
        """There is room, as far as anybody knows."""
        self._full_for = self.free_bytes = None
        self._places = 0
        self._beside.clear()
        self._pace.eased()

    def _let_in(self, texts: int) -> LetIn:
        """Raises Full."""
        if self._full_for is None:
            return LetIn.ROOM
        if self._places >= texts:
            self._places -= texts
            return LetIn.PLACE
        if texts < self._full_for:
            return LetIn.FEWER
        if self._clock() >= self._probe_at:
            self._probe_at = self._clock() + PROBE_S
            return LetIn.PROBE
        raise Full(self._pace.place(texts, behind=0))

    def _left(self, visit: Visit) -> None:
        """What it leaves: the room of texts that were computed, or a place that it was given and has not used."""
        is_beside = visit in self._beside
        self._beside.discard(visit)
        has_ended = visit.has_begun and not visit.is_lost
        if has_ended:
            for _ in range(visit.texts):
                self._pace.ended(is_short=self._full_for is not None)
        if not self._inside:
            self.roomy()
        elif self._full_for is not None and not is_beside and (has_ended or visit.has_its_place):
            self._places += visit.texts


class Visit:
    """One request at a replica."""

    def __init__(self, crowding: Crowding, texts: int, why: LetIn) -> None:
        self.texts = texts
        self.why = why
        self.has_begun = False
        self.is_lost = False
        self._crowding = crowding
        self._found_it_full = False

    @property
    def has_its_place(self) -> bool:
        """Whether it was given one, and was neither computed nor told that there is none."""
        return self.why is LetIn.PLACE and not self.has_begun and not self._found_it_full

    def heard(self, said: Said) -> None:
        """What the replica says of it."""
        if isinstance(said, Refused) and said.code == BUSY:
            self._found_it_full = True
            self._crowding.busy(self.texts, said.free_bytes)
        elif isinstance(said, Begun):
            self.has_begun = True
            if self.why is LetIn.PROBE:
                self._crowding.roomy()
