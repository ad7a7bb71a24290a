"""How many requests are in hand at one time; one more is told when to come back.

This is the outer bound of what the gateway holds, far above what the devices take: those refuse by themselves, by their
memory. The k-th that is turned away is told when k places will have come free, by how long a place was held of late; so
what is told grows with those turned away, and falls with each place that is given back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from actors.openai.problems import crowded

LEAST_S, MOST_S = 1.0, 60.0  # that are told
NEWEST = 0.1  # what the newest counts in the mean of how long places are held


class Places:
    """`most` of them; `taken` are in use. `clock` gives seconds."""

    def __init__(self, most: int, clock: Callable[[], float]) -> None:
        self.taken = 0
        self._most = most
        self._clock = clock
        self._held_s = LEAST_S
        self._turned_away = 0  # less those for whom a place came free since

    @contextmanager
    def one(self) -> Iterator[None]:
        """A place for as long as the block runs.

        Raises:
            Problem: all are taken. Nothing changed.
        """
        if self.taken >= self._most:
            sentence = f"{self.taken} requests are in hand, and no more are taken at one time: ask again later"
            raise crowded("too_many_streams", sentence, retry_after_s=self._until_free())
        self.taken += 1
        taken_s = self._clock()
        try:
            yield
        finally:
            self._give_back(self._clock() - taken_s)

    def _until_free(self) -> float:
        self._turned_away += 1
        return min(max(LEAST_S, self._turned_away * self._held_s / self._most), MOST_S)

    def _give_back(self, held_s: float) -> None:
        self.taken -= 1
        self._turned_away = max(0, self._turned_away - 1)
        self._held_s += NEWEST * (held_s - self._held_s)
