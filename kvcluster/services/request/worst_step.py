"""A step as large as a worker's ever are, before it takes requests: whatever a model's code allocates is there then.

What a GPU has left is only known afterwards. The answers are thrown away. Where the device's memory is too small for
such a step, or others have it for longer than `MOST_S`, less is computed, or nothing; nothing depends on it but how
well the memory is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from kvcluster.services.completion import CompletionRequest
from kvcluster.services.port import DevicePort
from kvcluster.services.request.opening import open_request_service
from kvcluster.services.request.settings import Fallback, RequestSettings

if TYPE_CHECKING:
    from kvcluster.engine.model import Model
    from kvcluster.engine.tokenizer import Tokenizer

POLL_S = 0.1
MOST_S = 10.0  # for memory that others have; who waits for this worker waits for minutes


def run_worst_step(
    model: Model,
    tokenizer: Tokenizer,
    port: DevicePort,
    settings: RequestSettings,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Compute prompts that fill a step; all their memory is given back. Waits for memory for at most `MOST_S`.

    Raises:
        DeviceUnreachable, SessionEnded, StaleEpoch: the session is of no more use. Whatever the model raises.
    """
    alone = replace(settings, prefix_cache=False, fallback=Fallback.WAIT)  # equal prompts, and each computed in full
    service = open_request_service(model, tokenizer, port, alone, clock=clock)
    try:
        waiting, over_at = 0, clock() + MOST_S
        for key, tokens in enumerate(prompt_lengths(settings, model.context_tokens)):
            service.submit(key, CompletionRequest((0,) * tokens, max_tokens=1, temperature=0.0, ignore_eos=True))
            waiting += 1
        while waiting and clock() < over_at:
            if not service.step():
                service.wait(POLL_S)
            waiting -= len(service.said())
    finally:
        service.close()


def prompt_lengths(settings: RequestSettings, context_tokens: int) -> list[int]:
    """Prompts that are computed in one step, as many tokens together as it may have."""
    longest = min(settings.prefill_chunk_tokens, context_tokens - 1)
    whole, rest = divmod(settings.max_num_batched_tokens, longest)
    return [*[longest] * whole, *[rest] * bool(rest)][: settings.max_num_seqs]
