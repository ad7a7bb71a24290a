"""Who is told what became of each request at the HTTP side: the seam for metrics.

Told on the event loop, twice a request: when its body is about to be read, and when nothing more is done for it, in
whatever way that came. It is not asked anything, and decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Ended:
    """How one request ended; both words are few, and so fit for labels.

    `outcome` is "answered", "refused" (4xx: nothing was computed, or not to the end), "failed" (5xx, or an error event
    in a stream) or "cancelled" (the client went away). `reason` is "" for the first, "disconnected" for the last, and
    otherwise the error's code. `model` is "" where the request named none that is served. `first_token_s` is None where
    no token came, and of an answer that is not streamed: nobody hears of its tokens before it is whole.
    """

    outcome: str
    reason: str
    model: str
    total_s: float
    first_token_s: float | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class Observer(Protocol):
    """For each `began` there is one `ended`, later; neither may raise or wait."""

    def began(self) -> None: ...

    def ended(self, ended: Ended) -> None: ...


class Unobserved:
    """An observer that keeps nothing."""

    def began(self) -> None:
        return

    def ended(self, ended: Ended) -> None:
        return
