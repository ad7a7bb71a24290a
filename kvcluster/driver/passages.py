"""Operations that are under way: memory calls that belong together, so that no capture begins between two of them.

    with capture_gate.passage("release"):     # waits here for a capture, or is refused; never further down
        ...                                   # unmap, message, unmap: a capture that begins now waits for the end

Taken before any lock and before anything is changed: whoever waits here holds nothing that a capturing thread could
need. One within another, in one thread, is part of it. A block must not wait for another thread that needs a passage
of its own: a capture would let neither go on. A passage is a thread's own lock and a count: about 1 us for an
operation and 0.2 us for one within it (host, two busy cores). Whoever closes the gate takes each thread's lock once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from weakref import WeakSet


class Traveller:
    """One thread: `lock` is held, and `depth` above 0, while it has an operation under way."""

    __slots__ = ("__weakref__", "depth", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.depth = 0


Enter = Callable[[Traveller, str], None]
"""Takes the traveller's lock with the gate open, for an operation of this name, or raises."""


class Passage:
    """A context manager; see `CaptureGate.passage`. Entering raises as that says, with nothing changed."""

    __slots__ = ("_call", "_enter", "_mine")

    def __init__(self, mine: Traveller, call: str, enter: Enter) -> None:
        self._mine = mine
        self._call = call
        self._enter = enter

    def __enter__(self) -> None:
        mine = self._mine
        if not mine.depth:
            self._enter(mine, self._call)
        mine.depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        mine = self._mine
        mine.depth -= 1
        if not mine.depth:
            mine.lock.release()


class Travellers(threading.local):
    """All threads that ever had a passage and live; `mine` is the calling one."""

    def __init__(self, everybody: WeakSet[Traveller], adding: threading.Condition) -> None:
        self.mine = Traveller()
        with adding:
            everybody.add(self.mine)
