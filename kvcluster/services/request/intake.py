"""A request checked against the model and made ready, or the refusal that it gets.

Whoever reads requests from people checks their form first (the batch job, a web server); what is checked again here
would break the loop. Only here are the prompt's tokens known, and with them whether it fits the model.
"""

from __future__ import annotations

import itertools
import secrets
from typing import TYPE_CHECKING

from kvcluster.engine.sampling import SamplingParams
from kvcluster.engine.stop_strings import StopStrings
from kvcluster.services.completion import CompletionRequest, Refused
from kvcluster.services.request.generation import Generation, Order
from kvcluster.services.request.text import AnswerText

if TYPE_CHECKING:
    from kvcluster.engine.model import Model
    from kvcluster.engine.tokenizer import Tokenizer

BAD_REQUEST = 400
TOO_LONG = "context_length_exceeded"
INVALID = "invalid_value"


class Intake:
    """Makes generations out of requests, numbered in order of submission."""

    def __init__(self, model: Model, tokenizer: Tokenizer) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._numbers = itertools.count(1)

    def generation(self, key: int, request: CompletionRequest) -> Generation | Refused:
        """The request's generation, or why it cannot be served by this model."""
        try:
            prompt = self._token_ids(request.prompt)
            params = _params(request)
            text = AnswerText(self._tokenizer.detokenizer(), StopStrings(request.stop))
        except ValueError as wrong:
            return Refused(BAD_REQUEST, INVALID, str(wrong))
        if problem := self._problem(prompt, request.max_tokens):
            return problem
        end_ids = frozenset() if request.ignore_eos else self._model.eos_ids
        order = Order(key, next(self._numbers), prompt, request.max_tokens, params, end_ids)
        return Generation(order, text)

    def _token_ids(self, prompt: str | tuple[int, ...]) -> tuple[int, ...]:
        if not isinstance(prompt, str):
            return prompt
        if any("\ud800" <= character <= "\udfff" for character in prompt):
            raise ValueError("prompt holds half a character (a lone surrogate): give whole Unicode text")
        return tuple(self._tokenizer.encode(prompt))

    def _problem(self, prompt: tuple[int, ...], max_tokens: int) -> Refused | None:
        """The first thing in the way; the sentence names the field and the figures."""
        vocabulary, context = self._model.vocabulary, self._model.context_tokens
        unknown = next((token for token in prompt if not 0 <= token < vocabulary), None)
        if not prompt:
            return Refused(BAD_REQUEST, INVALID, "prompt is empty: give at least one token")
        if unknown is not None:
            sentence = f"prompt holds token {unknown}, and the model's tokens are 0 to {vocabulary - 1}"
            return Refused(BAD_REQUEST, INVALID, sentence)
        if max_tokens < 1:
            return Refused(BAD_REQUEST, INVALID, f"max_tokens is {max_tokens}, and must be at least 1")
        if len(prompt) + max_tokens > context:
            sentence = (
                f"prompt has {len(prompt)} tokens and max_tokens is {max_tokens}: {len(prompt) + max_tokens} together, "
                f"and the model's context is {context} tokens"
            )
            return Refused(BAD_REQUEST, TOO_LONG, sentence)
        return None


def _params(request: CompletionRequest) -> SamplingParams:
    """How to choose tokens. A seed that is drawn is drawn here, once, and so kept when the request is replayed."""
    seed = secrets.randbits(63) if request.seed is None else request.seed
    return SamplingParams(request.temperature, request.top_p, seed)
