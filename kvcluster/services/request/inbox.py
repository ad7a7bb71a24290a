"""What other threads tell the loop, in order. The only part of a request service that has a lock."""

from __future__ import annotations

import threading
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
            if key in self._keys:
                self._tell(Cancelled(key))

    def take(self) -> list[News]:
        """All news since the last call, in the order in which they came."""
        with self._changed:
            news, self._news = self._news, []
            return news

    def over(self, key: int) -> None:
        """The request of this key is over; the key may be used again."""
        with self._changed:
            self._keys.discard(key)

    def wait(self, timeout_s: float) -> None:
        """Return when there are news, at the latest after `timeout_s`."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._news), timeout_s)

    def _tell(self, news: News) -> None:
        self._news.append(news)
        self._changed.notify_all()
