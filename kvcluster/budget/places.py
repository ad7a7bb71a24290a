"""Arrival numbers of requests that ended, for a request that goes on under another name.

A request whose memory came into quarantine starts again in a new one; the device knows that as another request. It
keeps its place in the queue by naming the one that it was before. A number is taken once, so that no two open
requests share it. The last `MOST` of each session are remembered: whoever comes later than that queues up as new.
"""

from __future__ import annotations

from kvcluster.ids import RequestId

MOST = 1024


class Places:
    """By session, in the order in which the requests ended."""

    def __init__(self) -> None:
        self._by_session: dict[str, dict[RequestId, int]] = {}

    def leave(self, request: RequestId, arrival: int) -> None:
        """The request ended; its number may be taken."""
        places = self._by_session.setdefault(request.session, {})
        places[request] = arrival
        if len(places) > MOST:
            del places[next(iter(places))]

    def take(self, request: RequestId) -> int | None:
        """The number of an ended request, which nobody gets again; None where it is not known, or not ended."""
        return self._by_session.get(request.session, {}).pop(request, None)

    def forget(self, session: str) -> None:
        """The session has ended: nobody comes after its requests."""
        self._by_session.pop(session, None)

    def __len__(self) -> int:
        return sum(map(len, self._by_session.values()))
