"""What a caller wants continued, and what became of it: plain values, the same for the batch job and for serving.

A request that cannot be answered for a reason of its own (too long for the model, more memory than the device
has) is `Refused`, a value: it concerns nobody else. A worker's death is not; see `kvcluster.services.workers`.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace

MOST_CHOICES = 128  # of one request


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """`prompt` is text or token ids. `seed` None draws one. Generation ends before the first of `stop` in the text.

    `n` texts are drawn; with one seed the i-th is what a request for one text with `sample` + i says. What is computed
    for it is reused for requests of the same `cache_salt` alone. With `use_beam_search` the `n` texts are the best that
    a search of that width finds; their score is the sum of log-probabilities over length ** `length_penalty`.

    `died_with` are sessions of workers that died while they had this very request, the newest first: whoever gets it
    next goes on where they ended, as far as their device still knows.
    """

    prompt: str | tuple[int, ...]
    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    n: int = 1
    sample: int = 0
    cache_salt: str = ""
    use_beam_search: bool = False
    length_penalty: float = 1.0
    early_stopping: bool = False
    died_with: tuple[str, ...] = ()

    def with_seed(self) -> CompletionRequest:
        """The same with a seed, so that it draws the same whoever computes it, and however often."""
        is_drawn = self.temperature > 0 and self.seed is None
        return replace(self, seed=secrets.randbits(63)) if is_drawn else self


@dataclass(frozen=True, slots=True)
class Choice:
    """`finish_reason` is "stop" (end token or stop text) or "length" (max_tokens)."""

    text: str
    finish_reason: str


@dataclass(frozen=True, slots=True)
class Completion:
    """`text` without the prompt, and why it ended: the first choice; `more` are the others.

    `completion_tokens` are those of all choices. `cached_tokens` of the prompt were computed for an earlier request:
    how an answer came about is not part of it, and two that differ in nothing else are equal.
    """

    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    more: tuple[Choice, ...] = ()
    cached_tokens: int = field(default=0, compare=False)

    @property
    def choices(self) -> tuple[Choice, ...]:
        return (Choice(self.text, self.finish_reason), *self.more)


@dataclass(frozen=True, slots=True)
class Refused:
    """An error that is this request's own. `status_code` is HTTP's; `message` is a sentence that names the field.

    `retry_after_s`: the same may be answered after so long.
    """

    status_code: int
    code: str
    message: str
    retry_after_s: float | None = None
