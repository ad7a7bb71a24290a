"""What a caller wants continued, and what became of it: plain values, the same for the batch job and for serving.

A request that cannot be answered for a reason of its own (too long for the model, more memory than the device
has) is `Refused`, a value: it concerns nobody else. A worker's death is not; see `kvcluster.services.workers`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """`prompt` is text or token ids. `seed` None draws one. Generation ends before the first of `stop` in the text."""

    prompt: str | tuple[int, ...]
    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class Completion:
    """`text` without the prompt; `finish_reason` is "stop" (end token or stop text) or "length" (max_tokens)."""

    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Refused:
    """An error that is this request's own. `status_code` is HTTP's; `message` is a sentence that names the field."""

    status_code: int
    code: str
    message: str
