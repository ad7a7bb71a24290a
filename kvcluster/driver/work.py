"""What of this process is at work on its memory now, as far as it says so: the host's kernels and streams.

Nothing on the host runs by itself, but threads compute while others want to unmap. Whoever computes says so
(`with works.working():`), and a fence covers what had begun when it was made and nothing that began later. Not a
lock: it hinders nobody, and memory calls go on meanwhile.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from kvcluster.driver.books import RuleBroken
from kvcluster.driver.strict import Asked, Entrance


class Works:
    """The blocks under way, each with the thread that runs it."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._threads: dict[int, int] = {}
        self._ended = threading.Condition()

    @contextmanager
    def working(self) -> Iterator[None]:
        """The block is work under way; blocks nest and overlap."""
        with self._ended:
            number = next(self._numbers)
            self._threads[number] = threading.get_ident()
        try:
            yield
        finally:
            with self._ended:
                del self._threads[number]
                self._ended.notify_all()

    def under_way(self) -> frozenset[int]:
        with self._ended:
            return frozenset(self._threads)

    def wait(self, numbers: frozenset[int]) -> None:
        """Return when all of them have ended.

        Raises:
            RuleBroken: one is the caller's own, which would wait for itself.
        """
        with self._ended:
            if any(self._threads.get(number) == threading.get_ident() for number in numbers):
                raise RuleBroken("work of this thread is under way")
            self._ended.wait_for(lambda: numbers.isdisjoint(self._threads))


class HostFence:
    """`kvcluster.driver.protocol.Fence` over `Works`; asks no hardware, so that a capture does not concern it.

    In a forked child the work's threads are not there and their lock may be held for ever: it is refused there.
    """

    def __init__(self, works: Works, entrance: Entrance, call: str) -> None:
        self._works = works
        self._entrance = entrance
        self._call = call
        self._numbers = works.under_way()

    def done(self) -> bool:
        """
        Raises:
            DriverError: this is a forked child of the process that made the fence.
        """
        with self._told():
            return self._numbers.isdisjoint(self._works.under_way())

    def wait(self) -> None:
        """
        Raises:
            DriverError: work of this thread is among what it would wait for, or as `done`.
        """
        with self._told():
            self._works.wait(self._numbers)

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            self._entrance.check_process()
            yield
        except RuleBroken as broken:
            raise self._entrance.told(Asked(self._call), broken) from broken
