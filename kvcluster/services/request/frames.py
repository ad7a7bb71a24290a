"""Asks cut into frames: one, unless more is due at once than a frame carries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kvcluster.services.asks import MOST_ASKS, MOST_RUNS, Ask


def in_frames(asks: Iterable[Ask], *, most_asks: int = MOST_ASKS, most_runs: int = MOST_RUNS) -> Iterator[list[Ask]]:
    """`asks` in their order, as few frames as the limits allow; each ask may take a run of windows a fragment."""
    frame: list[Ask] = []
    runs = 0
    for ask in asks:
        if frame and (len(frame) == most_asks or runs + ask.memory.fragments > most_runs):
            yield frame
            frame, runs = [], 0
        frame.append(ask)
        runs += ask.memory.fragments
    if frame:
        yield frame
