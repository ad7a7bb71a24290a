"""Page tables ahead of the first touch, by a thread of the driver's own: off the step that will write there.

The pages of a handle are there since it was created, but each mapping of them still meets a fault a page at first
touch: 16 for a granule of 64 KiB, 1.2 us each, while a step waits. Asked for a run at once the kernel takes 0.3 us a
page (measured; MADV_POPULATE_WRITE, Linux 5.14). Nothing depends on it: what was not entered in time, or not at all
(an older kernel, a graph being captured, memory that was unmapped meanwhile), is entered by the fault, as before.

The thread begins with the first run (54 us) and ends when there was none for a while, or with the driver.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from kvcluster.units import MIB

LINGER_S = 0.25
_PIECE_BYTES = 1 * MIB  # some 70 us, for which the driver's other calls may have to wait

Enter = Callable[[int, int], bool]
"""Enters the pages of [address, address + size); False where it is no use to go on with this run."""


class Population:
    """Of one driver. `enter` is called by the thread alone, for runs in the order in which they were asked for."""

    def __init__(self, enter: Enter, granule_bytes: int) -> None:
        self._enter = enter
        self._piece_bytes = max(granule_bytes, _PIECE_BYTES)
        self._asked: deque[tuple[int, int]] = deque()
        self._changed = threading.Condition()
        self._is_running = False
        self._is_over = False

    def ask(self, address: int, size_bytes: int) -> None:
        """Have these pages entered soon. Waits for nothing; does nothing once it has ended."""
        with self._changed:
            if self._is_over:
                return
            self._asked.append((address, size_bytes))
            begins, self._is_running = not self._is_running, True
            self._changed.notify()
        if begins:
            threading.Thread(target=self._run, name="kvcluster-population", daemon=True).start()

    def end(self) -> None:
        """Nothing is entered any more, but for what is under way; the thread ends soon."""
        with self._changed:
            self._is_over = True
            self._asked.clear()
            self._changed.notify()

    def _run(self) -> None:
        while (run := self._next()) is not None:
            address, size_bytes = run
            for place in range(address, address + size_bytes, self._piece_bytes):
                if not self._enter(place, min(self._piece_bytes, address + size_bytes - place)):
                    break

    def _next(self) -> tuple[int, int] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._asked or self._is_over, LINGER_S)
            if self._asked:
                return self._asked.popleft()
            self._is_running = False
            return None
