"""Ending a text at a stop string that may arrive in pieces, and never shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Passed:
    """`text` may be shown; `stopped` says that a stop string followed it, and nothing more will come."""

    text: str
    stopped: bool


class StopStrings:
    """Holds back as much of a growing text as could be the beginning of one of `stops`."""

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise ValueError("a stop string holds at least 1 character")
        self._stops = tuple(stops)
        self._held = ""

    def push(self, text: str) -> Passed:
        """What may be shown now that `text` has followed."""
        seen, known = self._held + text, len(self._held)  # what ended in the text that is known was passed by
        ends = [at for stop in self._stops if (at := seen.find(stop, max(0, known - len(stop) + 1))) >= 0]
        if ends:
            self._held = ""
            return Passed(seen[: min(ends)], stopped=True)
        return Passed(self._shown(seen), stopped=False)

    def pass_by(self, text: str) -> str:
        """The same, where what is complete ends nothing; what `text` only begins may do so later."""
        return self._shown(self._held + text)

    def _shown(self, seen: str) -> str:
        keep = max((_overlap(seen, stop) for stop in self._stops), default=0)
        shown = len(seen) - keep
        self._held = seen[shown:]
        return seen[:shown]

    def finish(self) -> str:
        """What was held back: the text is over, so it began no stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(seen: str, stop: str) -> int:
    """How many characters at the end of `seen` begin `stop`."""
    longest = min(len(seen), len(stop) - 1)
    return next((count for count in range(longest, 0, -1) if seen.endswith(stop[:count])), 0)
