"""What a request service is set to. The names are those of `kvcluster.config`, which holds a user's settings."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from kvcluster.geometry.layout import Layout

if TYPE_CHECKING:
    from kvcluster.config import Settings


class Fallback(StrEnum):
    """What becomes of a request that the device refuses."""

    WAIT = "wait"  # for the device
    HOST = "host"  # it is served from host pages
    REFUSE = "refuse"  # its caller is told when to come back


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """`margin_steps` is how many tokens ahead memory is committed; `most_tries` bounds a failing device's retries.

    `quarantine_wait_s` is how long a request waits for memory that only the end of some process can bring back; None
    is twice the device's lease. `max_num_waiting` texts may wait beyond those that can be computed at once (`door`);
    None: all. Who is refused for that, or for a short device, is told a wait between `retry_after_min_s` and
    `retry_after_max_s`. With `prefix_cache` what was computed is kept for requests that begin alike, until the
    memory is needed; requests that run together share what spares one of them `least_shared_tokens` or more, because
    sharing takes its owner two or three steps. A request that died with a worker waits at most `death_wait_s` until the
    device knows of that death: Ray kills a worker that is stopped after 5 s.
    """

    layout: Layout = Layout.TOKEN_MAJOR
    max_num_seqs: int = 16
    max_num_waiting: int | None = None
    max_num_batched_tokens: int = 512
    prefill_chunk_tokens: int = 256
    margin_steps: int = 16
    most_tries: int = 3
    try_again_s: float = 0.1
    retry_after_min_s: float = 0.1
    retry_after_max_s: float = 30.0
    quarantine_wait_s: float | None = None
    prefix_cache: bool = True
    least_shared_tokens: int = 64
    death_wait_s: float = 8.0
    fallback: Fallback = Fallback.WAIT

    def __post_init__(self) -> None:
        counts = (
            self.max_num_seqs,
            self.prefill_chunk_tokens,
            self.margin_steps,
            self.most_tries,
            self.least_shared_tokens,
        )
        times = (self.try_again_s, self.quarantine_wait_s or 0.0, self.retry_after_min_s)
        if min(counts) < 1 or min(*times, self.max_num_waiting or 0) < 0:
            raise ValueError(f"every setting of {self} is at least 1, and no time, nor max_num_waiting, is negative")
        if self.retry_after_min_s > self.retry_after_max_s:
            raise ValueError(f"retry_after_min_s of {self} is at least 0, and at most retry_after_max_s")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}, and must be at least max_num_seqs, "
                f"which is {self.max_num_seqs}: each running sequence adds a token a step"
            )


def request_settings(settings: Settings) -> RequestSettings:
    """The part of a user's settings that concerns one request service."""
    return RequestSettings(
        layout=Layout(settings.layout),
        max_num_seqs=settings.max_num_seqs,
        max_num_waiting=settings.max_num_waiting,
        retry_after_min_s=settings.retry_after_min_s,
        retry_after_max_s=settings.retry_after_max_s,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        prefill_chunk_tokens=settings.prefill_chunk_tokens,
        margin_steps=settings.margin_steps,
        prefix_cache=settings.prefix_cache == "on",
        fallback=Fallback(settings.fallback),
    )
