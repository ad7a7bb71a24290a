"""Waiting for many descriptors at once, with a wake-up from other threads.

An action that another action of the same turn made pointless (its descriptor is no longer watched, or its number
already names something else) is not called.
"""

from __future__ import annotations

import os
import selectors
from collections.abc import Callable

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE

Action = Callable[[int], None]


class Loop:
    def __init__(self, selector: selectors.BaseSelector, wakeup: int) -> None:
        self._selector = selector
        self._wakeup = wakeup

    @classmethod
    def open(cls) -> Loop:
        wakeup = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            loop = cls(selectors.DefaultSelector(), wakeup)
        except OSError:
            os.close(wakeup)
            raise
        loop.watch(wakeup, lambda _: loop.woken())
        return loop

    def watch(self, fd: int, action: Action) -> None:
        """Call `action` with READ whenever there is something to read, or the other end is closed."""
        self._selector.register(fd, READ, action)

    def want(self, fd: int, events: int) -> None:
        """From now on wait for `events` of a watched descriptor."""
        key = self._selector.get_key(fd)
        if key.events != events:
            self._selector.modify(fd, events, key.data)

    def unwatch(self, fd: int) -> None:
        """Before `fd` is closed."""
        self._selector.unregister(fd)

    def turn(self, timeout_s: float) -> None:
        """Wait for something, or for `timeout_s`, and call what it concerns."""
        for key, events in self._selector.select(max(timeout_s, 0.0)):
            now = self._selector.get_map().get(key.fd)
            if now is not None and now.data is key.data:
                key.data(events)

    def wake(self) -> None:
        """End the turn that runs now, or the next one; from any thread."""
        os.eventfd_write(self._wakeup, 1)

    def woken(self) -> None:
        """The turn has ended: the next one waits again."""
        os.eventfd_read(self._wakeup)

    def close(self) -> None:
        self._selector.close()
        os.close(self._wakeup)
