"""A graph that is captured beside the test's own thread, and begins where the test says so.

    with Capturer(Meanwhile.REFUSE, look=lambda: len(faulty.log())) as capturer:
        faulty.follow(capturer.begins_at(3))       # before the third call from now on
        memory.release()
        assert capturer.seen() == len(faulty.log())

Beginning returns as soon as no operation begins any more; whether one is still under way is the gate's business.
`look` is called in the capture's own thread once it has begun. Leaving the block ends the capture.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Generic, Self, TypeVar

from kvcluster.driver.gate import Meanwhile, capture_gate
from kvcluster.testing.faulty_driver import Call, Plan

T = TypeVar("T")

LIMIT_S = 30.0  # for what takes a moment, unless somebody waits for ever


class Capturer(Generic[T]):
    """At most one capture; a context manager."""

    def __init__(self, meanwhile: Meanwhile, *, look: Callable[[], T]) -> None:
        self._meanwhile = meanwhile
        self._look = look
        self._over = threading.Event()
        self._seen: Future[T] = Future()
        self._pool = ThreadPoolExecutor(1)
        self.has_begun = False

    def begin(self) -> None:
        """The gate is closing, or closed."""
        self.has_begun = True
        capturing = self._pool.submit(self._capture)
        while not (capture_gate.is_closing or capturing.done()):
            os.sched_yield()

    def begins_at(self, number: int) -> Plan:
        """No call fails; the one of this number is the first in whose way the capture may be."""

        def plan(name: str, before: Sequence[Call]) -> bool:
            if len(before) + 1 == number:
                self.begin()
            return False

        return plan

    def seen(self) -> T:
        """What `look` saw; waits for the capture. Raises what it raised."""
        return self._seen.result(timeout=LIMIT_S)

    def end(self) -> None:
        """The capture is over, if there was one."""
        self._over.set()
        self._pool.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def _capture(self) -> None:
        try:
            with capture_gate.closed(self._meanwhile):
                self._seen.set_result(self._look())
                self._over.wait(timeout=LIMIT_S)
        except BaseException as failure:  # noqa: BLE001 (told to whoever asks what was seen)
            self._seen.set_exception(failure)
