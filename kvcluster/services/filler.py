"""Creating handles ahead, on a thread of its own, so that a growth finds them in the pool; and releasing too many.

Woken after each act that may have emptied the pool, and once in a while by itself: a client's death wakes nobody, and
may leave so many handles that they are released step by step, after their bytes are free. Between two of its steps it
stands back for a moment, because the device's lock is not a fair one and frames go first. It waits for nobody while it
holds that lock (for a graph that is being captured it waits before), so it can stop nothing but itself.
Source: a create of 2 MiB takes 100 times as long as its map (pages are allocated and cleared); to release 8,192
handles of 64 KiB at once took 400 to 600 ms, which whoever asked meanwhile had to wait for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

BREATH_S = 0.001
REST_S = 1.0  # of a filler that nobody wakes


class Filler:
    """Calls `fill` (see `DeviceService.fill`) until there is nothing more to do, each time that it is woken."""

    def __init__(self, fill: Callable[[], bool]) -> None:
        self._fill = fill
        self._woken = threading.Event()
        self._ended = threading.Event()

    def run(self) -> None:
        """The whole of a thread; returns after `end`."""
        while not self._ended.is_set():
            self._woken.wait(REST_S)
            self._woken.clear()
            while not self._ended.is_set() and self._fill():
                self._ended.wait(BREATH_S)

    def wake(self) -> None:
        """There may be something to do. Never blocks."""
        self._woken.set()

    def end(self) -> None:
        """`run` returns soon. Again: nothing."""
        self._ended.set()
        self._woken.set()
