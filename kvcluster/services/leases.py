"""Who was heard in time: the leases of one owner's sessions, judged by the arrival of heartbeats.

A client beats from a thread of its own, so one that only computes is heard; silence means that its process is stopped,
or hangs. The owner looks about once a second. One that was itself stopped, or held up, has heard nobody meanwhile: of
the time between two looks at most `MOST_BETWEEN_S` count, so that it hears what waits for it before it judges.

Not the place for what the end of a lease means (`services.clients`). No clock: whoever calls says what time it is.
Source: "Leases" (Gray and Cheriton, 1989): both sides' clocks may differ, so only the owner's own is asked.
"""

from __future__ import annotations

MOST_BETWEEN_S = 2.0  # twice the period of looks


class Leases:
    """Each is `lease_s` seconds from when its session was last heard."""

    def __init__(self, lease_s: float, *, now_s: float) -> None:
        self.lease_s = lease_s
        self._until_s: dict[str, float] = {}
        self._looked_s = now_s

    def heard(self, name: str, *, now_s: float) -> None:
        """The session is here, or is still alive."""
        self._until_s[name] = now_s + self.lease_s

    def end(self, name: str) -> None:
        """The session has no lease any more. Again: nothing."""
        self._until_s.pop(name, None)

    def expired(self, *, now_s: float) -> tuple[str, ...]:
        """Look: whose leases are over, each told once."""
        unwatched_s = max(0.0, now_s - self._looked_s - MOST_BETWEEN_S)
        self._looked_s = now_s
        if unwatched_s:
            latest_s = now_s + self.lease_s
            self._until_s = {name: min(until_s + unwatched_s, latest_s) for name, until_s in self._until_s.items()}
        over = tuple(name for name, until_s in self._until_s.items() if until_s <= now_s)
        for name in over:
            self.end(name)
        return over
