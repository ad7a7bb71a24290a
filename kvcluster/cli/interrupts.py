"""Ctrl-C and SIGTERM: the first one stops the command in order, the later ones do not disturb that.

The first raises KeyboardInterrupt in the main thread, so that every `with` on the way closes what it opened. From
then on both signals do nothing: a second Ctrl-C would cut the closing short and leave processes behind. A handler
that does nothing is used rather than SIG_IGN, which processes started meanwhile would inherit.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
INTERRUPTED = 130  # what a shell reports for a command that Ctrl-C ended


def heed() -> None:
    """The next signal raises KeyboardInterrupt. Called again after code that sets handlers of its own (Ray does)."""
    for number in _SIGNALS:
        signal.signal(number, _stop)


def ignore() -> None:
    """From now on the signals do nothing: the command is closing."""
    for number in _SIGNALS:
        signal.signal(number, _nothing)


@contextmanager
def stopped_once() -> Iterator[None]:
    """Heeds signals in the block, and puts the handlers from before back after it."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    heed()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    ignore()
    raise KeyboardInterrupt


def _nothing(number: int, frame: FrameType | None) -> None:
    return
