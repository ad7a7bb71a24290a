"""Asks cut into frames: one, unless more is due at once than a frame carries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kvcluster.services.asks import MOST_ASKS, MOST_RUNS, Ask, runs_of_ask


def in_frames(asks: Iterable[Ask], *, most_asks: int = MOST_ASKS, most_runs: int = MOST_RUNS) -> Iterator[list[Ask]]:
    """`asks` in their order, as few frames as the limits allow."""
    frame: list[Ask] = []
    runs = 0
    for ask in asks:
        more = runs_of_ask(ask)
        if frame and (len(frame) == most_asks or runs + more > most_runs):
            yield frame
            frame, runs = [], 0
        frame.append(ask)
        runs += more
    if frame:
        yield frame
