"""What other threads tell the loop, in order. The only part of a request service that has a lock.

A request is over when its answer was taken, or its cancel was heard: until then its key is in use. So a cancel that
comes before the answer was taken is in time, and one that comes later is of nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Set
from dataclasses import dataclass

from kvcluster.services.completion import CompletionRequest


@dataclass(frozen=True, slots=True)
class Submitted:
    key: int
    request: CompletionRequest


@dataclass(frozen=True, slots=True)
class Cancelled:
    key: int


News = Submitted | Cancelled


class Inbox:
    """News from any thread, and the keys of requests that are not over."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._news: list[News] = []
        self._keys: set[int] = set()
        self._cancelled: frozenset[int] = frozenset()  # and not heard yet

    def submit(self, key: int, request: CompletionRequest) -> None:
        """Raises ValueError where `key` names a request that is not over: two lives would mix."""
        with self._changed:
            if key in self._keys:
                raise ValueError(f"request {key} is not over yet: choose another key")
            self._keys.add(key)
            self._tell(Submitted(key, request))

    def cancel(self, key: int) -> None:
        """A key that is over, or never was, is nothing to cancel."""
        with self._changed:
            if key in self._keys and key not in self._cancelled:
                self._cancelled |= {key}
                self._tell(Cancelled(key))

    def take(self) -> list[News]:
        """All news since the last call, in the order in which they came."""
        with self._changed:
            news, self._news = self._news, []
            return news

    def over(self, keys: Iterable[int]) -> Set[int]:
        """Requests whose answers are taken are over, and their keys may be used again.

        But for those that are cancelled and whose cancel was not heard yet: all such are returned, of any key.
        """
        with self._changed:
            self._keys.difference_update(set(keys) - self._cancelled)
            return self._cancelled

    def heard(self, key: int) -> None:
        """The cancel of this key was heard; the key may be used again."""
        with self._changed:
            self._cancelled -= {key}
            self._keys.discard(key)

    def wait(self, timeout_s: float) -> None:
        """Return when there are news, at the latest after `timeout_s`."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._news), timeout_s)

    def _tell(self, news: News) -> None:
        self._news.append(news)
        self._changed.notify_all()
