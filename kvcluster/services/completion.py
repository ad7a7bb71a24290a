"""What a caller wants continued, and what became of it: plain values, the same for the batch job and for serving.

A request that cannot be answered for a reason of its own (too long for the model, more memory than the device
has) is `Refused`, a value: it concerns nobody else. A worker's death is not; see `kvcluster.services.workers`.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum

BAD_REQUEST, TOO_MANY, UNAVAILABLE = 400, 429, 503  # why somebody is `Refused`, as HTTP counts
TOO_LONG, INVALID, BUSY = "context_length_exceeded", "invalid_value", "server_busy"  # its code

MOST_CHOICES = 128  # of one request
MOST_LOGPROBS = 20  # of one token


class Telling(StrEnum):
    """What is said of a request before its answer is whole."""

    WHOLE = "nothing"
    BEGUN = "that it has memory, and is computed from now on"
    PARTS = "that, and each part as it is made"


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """`prompt` is text or token ids. `seed` None draws one. Generation ends before the first of `stop` in the text.

    `n` texts are drawn; with one seed the i-th is what a request for one text with `sample` + i says. What is computed
    for it is reused for requests of the same `cache_salt` alone. With `use_beam_search` the `n` texts are the best that
    a search of that width finds; their score is the sum of log-probabilities over length ** `length_penalty`.

    No end token and no end of a text before `min_tokens`. `logprobs`: of each token its log-probability and those of so
    many that were likelier than all others; None: neither. `tells` says what is heard
    before the whole of it: nothing, `Begun` once there is memory for it, or `Delta`s after that too.

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
    min_tokens: int = 0
    logprobs: int | None = None
    tells: Telling = Telling.WHOLE
    died_with: tuple[str, ...] = ()

    def with_seed(self) -> CompletionRequest:
        """The same with a seed, so that it draws the same whoever computes it, and however often."""
        is_drawn = self.temperature > 0 and self.seed is None
        return replace(self, seed=secrets.randbits(63)) if is_drawn else self


@dataclass(frozen=True, slots=True)
class Likelihood:
    """One token of a text: what it says alone, and its natural log-probability before temperature and top_p.

    `others` are the likeliest tokens of its place, the likeliest first; itself too where it is one of them.
    """

    token: str
    logprob: float
    others: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """`finish_reason` is "stop" (end token or stop text) or "length" (max_tokens)."""

    text: str
    finish_reason: str
    logprobs: tuple[Likelihood, ...] = ()


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
    logprobs: tuple[Likelihood, ...] = ()

    @property
    def choices(self) -> tuple[Choice, ...]:
        return (Choice(self.text, self.finish_reason, self.logprobs), *self.more)


@dataclass(frozen=True, slots=True)
class Begun:
    """The first of a streamed answer: the request has memory, and is computed from now on."""

    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Delta:
    """What one choice of a streamed answer said since its last delta; with `finish_reason` it is its last.

    `tokens` were generated for it; `logprobs` are theirs. `text` may be empty: a character is not whole yet, or may
    begin a stop text.
    """

    choice: int
    text: str
    tokens: int
    logprobs: tuple[Likelihood, ...] = ()
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """An error that is this request's own. `status_code` is HTTP's; `message` is a sentence that names the field, and
    `param` that field alone, where one is wrong by itself.

    `retry_after_s`: the same may be answered after so long. `need_bytes` of KV memory were asked for where only
    `free_bytes` were free, if it was that; where too many wait, that is what the prompt takes.
    """

    status_code: int
    code: str
    message: str
    retry_after_s: float | None = None
    need_bytes: int | None = None
    free_bytes: int | None = None
    param: str | None = None


Said = Begun | Delta | Completion | Refused  # about one request; a Completion or Refused is the last


def answers_among(told: Iterable[tuple[int, Said]]) -> list[tuple[int, Completion | Refused]]:
    """Of what was said of requests, what their callers wait for who want the whole at once."""
    return [(key, said) for key, said in told if isinstance(said, Completion | Refused)]
