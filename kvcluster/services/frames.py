"""Asks cut into frames: one, unless more is due at once than a frame carries. And what became of a frame of one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from kvcluster.services.asks import MOST, Ask, Load, Outcome, load_of

if TYPE_CHECKING:
    from kvcluster.services.kv_port import PendingFrame


def outcome_of(pending: PendingFrame) -> Outcome:
    """What became of the only ask of a frame; waits for it.

    Raises:
        Whatever it is refused with, and as `PendingFrame.settle`. The state is that of its ask (`services.asks`).
    """
    [outcome] = pending.settle()
    if outcome.error:
        raise outcome.error
    return outcome


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
