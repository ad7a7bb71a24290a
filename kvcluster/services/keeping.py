"""What dead processes leave to their successors: their requests' memory for a while, and what they had said.

Each session may have a progress page (`services.progress_page`). It is read when nothing of the session can be mapped
anywhere any more, never sooner: an old process that lives may still write. Each text found there is *left*:

    its memory    for `grace_s`, where the page says how many tokens are written and all of their windows are there.
                  Charged as retained: it goes when somebody needs the room
    its words     the ids that were emitted, for `WORDS_S`: they spare whoever computes it again one step a token

A page that says that it is over leaves no memory: its process ended itself, or gave everything back. A session that its
process surrendered leaves none either, whatever its page says. One that is void leaves no words, only how much was
computed. Whoever says the label has what is left, the memory once.
Called under the device service's lock.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from kvcluster.driver.linux import create_sparse, duplicate
from kvcluster.errors import LimitReached, NotAllowed
from kvcluster.failpoints import Failpoint, reach
from kvcluster.ids import RequestId, WindowRun
from kvcluster.index.token_chain import ID_BYTES, count_of
from kvcluster.memory.remnant import Remnant, remnant_of
from kvcluster.memory.reservation import Reservation, ReservationState
from kvcluster.services.books import Books
from kvcluster.services.progress_page import FILE_BYTES, Found, Read, Stage, Standing, is_over, texts_of
from kvcluster.services.queue import Queue
from kvcluster.services.told import ToldIds
from kvcluster.services.work import Work

WORDS_S = 600.0  # a job that goes on has replayed everything by then
MOST_TEXTS = 4096  # texts; the oldest are forgotten first
_IDS_OF_A_RUN = 8  # as many token ids of an answer are about as long as a run of windows


@dataclass(slots=True, eq=False)
class KeptText:
    """One text of a dead session. `remnant`: its memory, until `kept_until`."""

    session: str
    standing: Standing
    token_ids: bytes
    remnant: Remnant | None
    kept_until: float
    until: float


@dataclass(frozen=True, slots=True)
class Adoption:
    """What a request finds: see `wire.adopt.Adopted`."""

    what: Literal["adopted", "said", "living", "nothing"]
    tokens: int = 0
    computed: int = 0
    token_ids: bytes = b""
    prefixes: tuple[int, ...] = ()
    shared: tuple[WindowRun, ...] = ()
    runs: tuple[WindowRun, ...] = ()
    told: int = 0
    arrival: int = 0


_LIVING, _NOTHING = Adoption("living"), Adoption("nothing")


class Keeping:
    """Of one device. `clock` gives seconds."""

    def __init__(
        self, books: Books, queue: Queue, told: ToldIds, *, grace_s: float, clock: Callable[[], float]
    ) -> None:
        self._books = books
        self._queue = queue
        self._told = told
        self._grace_s = grace_s
        self._clock = clock
        self._pages: dict[str, int] = {}  # descriptors
        self._remnants: dict[str, list[Remnant]] = {}
        self._texts: dict[KeptText, None] = {}  # the oldest first
        self._inherited: dict[RequestId, KeptText] = {}  # adopted, and its new page may not say so yet

    # --- a session's page and its end -----------------------------------------------------------------------------

    def page(self, session: str) -> int:
        """A new descriptor of the session's page, its receiver's. The page is made when it is first asked for.

        Raises:
            LimitReached: there is no descriptor for it. Nothing is left open.
        """
        try:
            if session not in self._pages:
                self._pages[session] = create_sparse(FILE_BYTES)
            return duplicate(self._pages[session])
        except OSError as error:
            remedy = f"raise ulimit -n ({error})"
            raise LimitReached(limit="descriptors", need=1, free=0, remedy=remedy) from None

    def orphaned(self, session: str, reservations: Iterable[Reservation]) -> None:
        """Its connection or its lease is about to end, with these still open."""
        page = self._pages.get(session)
        if page is None:
            return
        if is_over(_reading(page)):
            self.gone(session)
        else:
            self._remnants[session] = [remnant for each in reservations if (remnant := remnant_of(each))]

    def surrendered(self, session: str) -> None:
        """Its process unmapped everything and lives on: of what it noted only the words are left."""
        self._remnants.pop(session, None)

    def waits_for(self, session: str) -> bool:
        """Whether its page is to be read when its process is gone."""
        return session in self._pages

    def gone(self, session: str) -> None:
        """Nothing of it is mapped anywhere: what it leaves is kept. What else was isolated of it is not free yet."""
        page, remnants = self._pages.pop(session, None), self._remnants.pop(session, [])
        inherited = self._inherited_by(session)
        if page is None:
            return
        by_number = {(remnant.request.number, remnant.request.generation): remnant for remnant in remnants}
        try:
            (texts, trusted), was_killed = texts_of(_reading(page)), not is_over(_reading(page))
        finally:
            os.close(page)
        noted = {text.standing.label for text in texts}
        for text in (*texts, *(text for text in inherited if text.standing.label not in noted)):
            standing = text.standing
            remnant = by_number.pop((standing.number, standing.generation), None)
            has_memory = was_killed and standing.stage is Stage.RUNNING
            self._leave(session, text, remnant if has_memory else None, trusted=trusted)
        reach(Failpoint.DEVICE_LEFT_BEHIND)

    def released(self, request: RequestId) -> None:
        """It gave something back, so that what it adopted is not what it has."""
        self._inherited.pop(request, None)

    def expire(self) -> None:
        """What nobody asked for in time is free, and then forgotten."""
        now = self._clock()
        for text in list(self._texts):
            if text.remnant is not None and text.kept_until <= now:
                self._drop_memory(text)
            if text.until <= now:
                self._forget(text)

    def close(self) -> None:
        """Nobody is coming."""
        for page in self._pages.values():
            os.close(page)
        self._pages.clear()
        self._remnants.clear()
        for text in list(self._texts):
            self._forget(text)

    @property
    def kept_bytes(self) -> int:
        """What is kept for successors."""
        return sum(remnant.size_bytes for remnant in self._books.kept)

    # --- a successor ------------------------------------------------------------------------------------------------

    def adopt(self, reservation: Reservation, sessions: Sequence[str], label: bytes, work: Work) -> Adoption:
        """What one of these sessions, the newest first, left under this label is this request's; once.

        Raises:
            NotAllowed: the request holds or uses something, or the answer does not fit into the reply. Nothing changed.
        """
        if reservation.state is not ReservationState.RESERVED:
            raise NotAllowed(reason=f"request {reservation.request} adopts before it holds or uses anything")
        if any(session in self._pages for session in sessions):
            return _LIVING
        text = self._find(sessions, label)
        if text is None:
            return _NOTHING
        work.naming(range(count_of(text.token_ids) // _IDS_OF_A_RUN))
        remnant = text.remnant if text.remnant in self._books.kept else None
        if remnant is None or not remnant.fits(reservation):
            work.after.append(partial(self._drop_memory, text))
            return Adoption("said", computed=text.standing.computed, token_ids=text.token_ids)
        return self._adopted(reservation, text, remnant, work)

    def _adopted(self, reservation: Reservation, text: KeptText, remnant: Remnant, work: Work) -> Adoption:
        shared = remnant.shared
        runs = shared.runs if shared else ()
        work.naming((*runs, *remnant.runs))
        work.handed += [*(shared.handles if shared else ()), *remnant.handles]
        work.after.append(partial(self._hand_over, reservation, text, remnant))
        standing = text.standing
        reservation.arrival = self._queue.succeed(remnant.arrival, reservation)
        return Adoption(
            "adopted",
            tokens=standing.written,
            computed=standing.computed,
            token_ids=text.token_ids,
            prefixes=tuple(use.prefix.number for use in remnant.uses),
            shared=runs,
            runs=remnant.runs,
            told=len(remnant.token_ids) // ID_BYTES,
            arrival=reservation.arrival,
        )

    def _hand_over(self, reservation: Reservation, text: KeptText, remnant: Remnant) -> None:
        self._books.hand_over(remnant, reservation)
        self._told.put(reservation, remnant.token_ids)
        self._queue.weigh(reservation)
        del self._texts[text]
        if not reservation.range_map.shape.has_rings:  # which may be written over before its page says anything
            text.remnant = None
            self._inherited[reservation.request] = text
        reach(Failpoint.DEVICE_ADOPTED)

    # --- parts --------------------------------------------------------------------------------------------------------

    def _leave(self, session: str, text: Found, remnant: Remnant | None, *, trusted: bool) -> None:
        standing, now = text.standing, self._clock()
        may_be_kept = self._grace_s > 0 and standing.written > 0
        if remnant is None or not may_be_kept or not remnant.holds(standing.written):
            remnant = None
        else:
            self._books.keep(remnant)
        token_ids = text.token_ids if trusted else b""
        self._texts[KeptText(session, standing, token_ids, remnant, now + self._grace_s, now + WORDS_S)] = None
        if len(self._texts) > MOST_TEXTS:
            self._forget(next(iter(self._texts)))

    def _inherited_by(self, session: str) -> list[Found]:
        """What the session adopted: it may not have lived to note it."""
        mine = [request for request in self._inherited if request.session == session]
        taken = [(request, self._inherited.pop(request)) for request in mine]
        return [Found(_in_memory_of(request, text.standing), text.token_ids) for request, text in taken]

    def _find(self, sessions: Sequence[str], label: bytes) -> KeptText | None:
        for session in sessions:
            for text in self._texts:
                if text.session == session and text.standing.label == label:
                    return text
        return None

    def _drop_memory(self, text: KeptText) -> None:
        if text.remnant is not None and text.remnant in self._books.kept:  # or it was evicted
            self._books.drop(text.remnant)
        text.remnant = None

    def _forget(self, text: KeptText) -> None:
        self._drop_memory(text)
        self._texts.pop(text, None)


def _reading(page: int) -> Read:
    return lambda place, size_bytes: os.pread(page, size_bytes, place)


def _in_memory_of(request: RequestId, standing: Standing) -> Standing:
    return Standing(
        standing.label,
        Stage.RUNNING,
        number=request.number,
        generation=request.generation,
        written=standing.written,
        computed=standing.computed,
        emitted=standing.emitted,
    )
