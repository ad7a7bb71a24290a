"""Asks cut into frames: one, unless more is due at once than a frame carries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from kvcluster.services.asks import MOST, Ask, Load, load_of


def in_frames(
    asks: Iterable[Ask], *, most: Load = MOST, load_of: Callable[[Ask], Load] = load_of
) -> Iterator[list[Ask]]:
    """`asks` in their order, as few frames as the limits allow. One that is too large by itself has its own."""
    frame: list[Ask] = []
    load = Load()
    for ask in asks:
        more = load_of(ask)
        if frame and not load.with_more(more).fits(most):
            yield frame
            frame, load = [], Load()
        frame.append(ask)
        load = load.with_more(more)
    if frame:
        yield frame
