"""What is noted of one request while it goes on, and told when it is over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from actors.openai.observer import Ended, Observer
from actors.openai.problems import OUR_BUG, Problem

ANSWERED, REFUSED, FAILED, CANCELLED = "answered", "refused", "failed", "cancelled"


class Record:
    """Of one request, from `with` on. `model` is set when the request names one that is served.

    Until something else is known, a request that ends was left by its client.
    """

    def __init__(self, observer: Observer, clock: Callable[[], float]) -> None:
        self.model = ""
        self._observer = observer
        self._clock = clock
        self._outcome, self._reason = CANCELLED, "disconnected"
        self._began_s = clock()
        self._first_token_s: float | None = None
        self._usage: Mapping[str, Any] | None = None

    def __enter__(self) -> Self:
        self._observer.began()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._observer.ended(self._ended(self._usage or {}))

    def heard_token(self) -> None:
        """A token came; the first is noted."""
        if self._first_token_s is None:
            self._first_token_s = self._clock() - self._began_s

    def counted(self, usage: Mapping[str, Any]) -> None:
        """What the answer, or as much as there is of it, counts."""
        self._usage = usage

    def answered(self) -> None:
        self._outcome, self._reason = ANSWERED, ""

    def failed(self, problem: Problem) -> None:
        self._outcome = FAILED if problem.status >= OUR_BUG or self._first_token_s is not None else REFUSED
        self._reason = problem.code

    def _ended(self, usage: Mapping[str, Any]) -> Ended:
        return Ended(
            self._outcome,
            self._reason,
            self.model,
            total_s=self._clock() - self._began_s,
            first_token_s=self._first_token_s,
            prompt_tokens=usage.get("prompt_tokens", 0),
            completion_tokens=usage.get("completion_tokens", 0),
            cached_tokens=usage.get("prompt_tokens_details", {}).get("cached_tokens", 0),
        )
