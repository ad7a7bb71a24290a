"""Whether one more request may wait here, decided when it comes and never again: whoever waits is answered in the end.

So many texts may be here as can be computed at once, and `max_num_waiting` beyond them. Where memory is what is short,
seats that nobody can use are no room: then only so many may wait at all. Who is sent away is told when to come back
(`pacing`).
"""

from __future__ import annotations

from collections.abc import Sequence

from kvcluster.services.completion import Refused
from kvcluster.services.request import refusals
from kvcluster.services.request.generation import Generation
from kvcluster.services.request.shared import Shared


class Door:
    """Of one service, with all its places."""

    def __init__(self, shares: Sequence[Shared]) -> None:
        self._shares = tuple(shares)
        self._settings = shares[0].settings
        self._tally = shares[0].tally
        self._pace = shares[0].pace

    def refusal(self, asked: Sequence[Generation]) -> Refused | None:
        """Why these texts, of one request, may not wait; None where they may."""
        if asked[0].crew and len(self._shares) == 1:
            return refusals.no_pages_for_beams()
        most, seats = self._settings.max_num_waiting, self._settings.max_num_seqs
        if most is None:
            return None
        texts = asked[0].order.texts
        if texts > most + seats:
            return refusals.never_at_once(texts, seats=seats, most_waiting=most)
        load = self._load(most)
        if load.waiting + texts <= load.room:
            return None
        self._tally.add(refused_waiting=1)
        prompt_bytes = self._shares[0].shape.committed_bytes(len(asked[0].order.prompt))
        return refusals.busy(load, texts, prompt_bytes, self._pace.place(texts, behind=load.waiting))

    def _load(self, most: int) -> refusals.Load:
        waiting = [generation for shared in self._shares for generation in shared.roster.waiting]
        running = sum(len(shared.roster.running) for shared in self._shares)
        free_seats = 0 if any(one.lacks_memory for one in waiting) else self._settings.max_num_seqs - running
        return refusals.Load(
            running=running,
            waiting=sum(one.seats for one in waiting),
            most_waiting=most,
            room=most + max(0, free_seats),
            free_bytes=next((one.back_off.free_bytes for one in waiting if one.back_off.is_refused), None),
        )
