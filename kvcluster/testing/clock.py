"""A clock that moves when it is told to, so that tests of waiting do not wait."""

from __future__ import annotations


class ManualClock:
    """Seconds; call it to read it."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def __call__(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Let so much time pass.

        Raises:
            ValueError: time does not go back.
        """
        if seconds < 0:
            raise ValueError(f"time passes by at least 0 seconds, not {seconds}")
        self._now += seconds
