"""When those may come back that were sent away: each at a time of its own, as fast as room has come free of late.

Whoever is refused gets a place in time, one after the other, behind those that wait inside. So what is told grows with
every refusal, and as time passes the places are behind us: it falls when nobody is refused any more. Room is counted in
texts. How long one takes is measured only while somebody lacked room: ends that are rare because few ask say nothing of
how fast it goes. An end that is late already counts as if it came now. Nobody is bound to his place. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

MOST_ENDS = 64  # of late, that the pace is measured by
DEFAULT_S = 1.0  # a text, while nothing was measured: rather too long


class Pace:
    """What is told lies between `least_s` and `most_s`. `clock` gives seconds."""

    def __init__(self, *, least_s: float, most_s: float, clock: Callable[[], float]) -> None:
        self._least_s = least_s
        self._most_s = most_s
        self._clock = clock
        self._gaps: deque[float] = deque(maxlen=MOST_ENDS)  # between ends, while somebody lacked room
        self._short_since: float | None = None  # somebody lacks room, and nothing has ended
        self._next_at = float("-inf")

    def ended(self, *, is_short: bool) -> None:
        """A text that was computed is over; `is_short`: somebody waits for what it had."""
        now = self._clock()
        if self._short_since is not None:
            self._gaps.append(now - self._short_since)
        self._short_since = now if is_short else None

    def eased(self) -> None:
        """Nobody lacks room any more: until somebody does, no time is measured."""
        self._short_since = None

    def place(self, texts: int, *, behind: int, not_before_s: float = 0.0) -> float:
        """In how many seconds so many texts are to come back that are refused now, while `behind` others wait.

        `not_before_s`: somebody else knows that there is no room earlier.
        """
        now = self._clock()
        if self._short_since is None:
            self._short_since = now
        text_s = self._seconds_a_text(now)
        next_at = max(max(now, self._next_at) + texts * text_s, now + not_before_s)
        self._next_at = min(next_at, now + self._most_s)
        told_s = self._next_at - now + behind * text_s
        return min(max(told_s, self._least_s), self._most_s)

    def _seconds_a_text(self, now: float) -> float:
        open_s = now - self._short_since if self._short_since is not None else 0.0
        if not self._gaps:
            return max(DEFAULT_S, open_s)
        mean_s = sum(self._gaps) / len(self._gaps)
        return mean_s if open_s <= mean_s else (sum(self._gaps) + open_s) / (len(self._gaps) + 1)
