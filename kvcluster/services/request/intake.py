"""A request checked against the model and made ready, or the refusal that it gets.

Whoever reads requests from people checks their form first (the batch job, a web server); what is checked again here
would break the loop. Only here are the prompt's tokens known, and with them whether it fits the model.
"""

from __future__ import annotations

import itertools
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING

from kvcluster.engine.beams import BeamSettings
from kvcluster.engine.sampling import SamplingParams
from kvcluster.engine.stop_strings import StopStrings
from kvcluster.index.identity import CacheIdentity
from kvcluster.index.token_chain import packed
from kvcluster.services.completion import (
    BAD_REQUEST,
    INVALID,
    MOST_CHOICES,
    MOST_LOGPROBS,
    TOO_LONG,
    CompletionRequest,
    Refused,
    Telling,
)
from kvcluster.services.request.crew import Crew
from kvcluster.services.request.generation import Generation
from kvcluster.services.request.identity import cache_identity, shares_prefixes
from kvcluster.services.request.label import label_of
from kvcluster.services.request.order import Order
from kvcluster.services.request.settings import RequestSettings
from kvcluster.services.request.text import AnswerText

if TYPE_CHECKING:
    from kvcluster.engine.model import Model
    from kvcluster.engine.tokenizer import Tokenizer


class Intake:
    """Makes generations out of requests, numbered in order of submission."""

    def __init__(self, model: Model, tokenizer: Tokenizer, settings: RequestSettings) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._settings = settings
        self._numbers = itertools.count(1)

    def in_tokens(self, request: CompletionRequest) -> CompletionRequest:
        """The same, its prompt in token ids, by any thread; one that is no text stays for `generations` to refuse."""
        try:
            return replace(request, prompt=self._token_ids(request.prompt))
        except ValueError:
            return request

    def generations(self, key: int, request: CompletionRequest) -> list[Generation] | Refused:
        """A generation for each text that the request is for, or why it cannot be served by this model."""
        if problem := _wrong_counts(request):
            return problem
        try:
            prompt = self._token_ids(request.prompt)
            params = _params(request)
            texts = [self._text(request) for _ in range(request.n)]
        except ValueError as wrong:
            return Refused(BAD_REQUEST, INVALID, str(wrong))
        if problem := self._problem(prompt, request.max_tokens):
            return problem
        first = self._order(key, request, prompt, params)
        if request.use_beam_search:
            return self._beams(request, first)
        others = (
            replace(first, number=next(self._numbers), choice=choice, sample=first.sample + choice)
            for choice in range(1, request.n)
        )
        labelled = [self._labelled(order, request) for order in (first, *others)]
        return [Generation(order, text) for order, text in zip(labelled, texts, strict=True)]

    def _order(self, key: int, request: CompletionRequest, prompt: tuple[int, ...], params: SamplingParams) -> Order:
        """Of the first text."""
        return Order(
            key,
            next(self._numbers),
            prompt,
            request.max_tokens,
            params,
            frozenset() if request.ignore_eos else self._model.eos_ids,
            texts=request.n,
            sample=request.sample,
            min_tokens=request.min_tokens,
            logprobs=request.logprobs,
            streams=request.tells is not Telling.WHOLE,
            in_parts=request.tells is Telling.PARTS,
            cache_root=self._cache_root(request.cache_salt),
            packed_prompt=packed(prompt),
        )

    def _beams(self, request: CompletionRequest, order: Order) -> list[Generation] | Refused:
        """The lead of a crew as wide as texts are wanted."""
        settings = BeamSettings(
            width=request.n,
            max_tokens=request.max_tokens,
            eos_ids=order.end_ids,
            length_penalty=request.length_penalty,
            early_stopping=request.early_stopping,
        )
        most = min(self._settings.max_num_seqs, self._model.vocabulary * request.n // settings.looked_at)
        if request.n > most:
            sentence = f"n is {request.n}, and a beam search here is at most {most} wide"
            return Refused(BAD_REQUEST, INVALID, sentence, param="n")
        crew = Crew(settings, lambda: self._text(request))
        lead = Generation(order, self._text(request), crew)
        crew.members.append(lead)
        return [lead]

    def _text(self, request: CompletionRequest) -> AnswerText:
        return AnswerText(self._tokenizer.detokenizer(), StopStrings(request.stop), request.min_tokens)

    def _labelled(self, order: Order, request: CompletionRequest) -> Order:
        """Notes for a successor have no log-probabilities: one that is asked for them leaves none, and begins again."""
        if request.logprobs is not None:
            return order
        label = label_of(self._identity(request.cache_salt), order, request.stop)
        return replace(order, label=label, died_with=request.died_with if label else ())

    def _cache_root(self, salt: str) -> bytes:
        """Under what its K and V are found; nothing, where nothing is to be found."""
        if not shares_prefixes(self._model, self._settings):
            return b""
        return self._identity(salt).root

    def _identity(self, salt: str) -> CacheIdentity:
        return cache_identity(self._model, self._settings).salted(salt)

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
            return Refused(BAD_REQUEST, INVALID, "prompt is empty: give at least one token", param="prompt")
        if unknown is not None:
            sentence = f"prompt holds token {unknown}, and the model's tokens are 0 to {vocabulary - 1}"
            return Refused(BAD_REQUEST, INVALID, sentence, param="prompt")
        if len(prompt) + max_tokens > context:
            sentence = (
                f"prompt has {len(prompt)} tokens and max_tokens is {max_tokens}: {len(prompt) + max_tokens} together, "
                f"and the model's context is {context} tokens"
            )
            return Refused(BAD_REQUEST, TOO_LONG, sentence)
        return None


def _wrong_counts(request: CompletionRequest) -> Refused | None:
    bounds = (
        ("max_tokens", request.max_tokens, 1, None),
        ("n", request.n, 1, MOST_CHOICES),
        ("sample", request.sample, 0, None),
        ("min_tokens", request.min_tokens, 0, request.max_tokens),
        ("logprobs", request.logprobs, 0, MOST_LOGPROBS),
    )
    for name, value, least, most in bounds:
        if value is None:
            continue
        if value < least or (most is not None and value > most):
            limit = f"at least {least}" if most is None else f"{least} to {most}"
            return Refused(BAD_REQUEST, INVALID, f"{name} is {value}, and must be {limit}", param=name)
    if request.use_beam_search and request.logprobs is not None:
        sentence = "logprobs is for texts that are drawn: leave it out with use_beam_search"
        return Refused(BAD_REQUEST, INVALID, sentence, param="logprobs")
    return None


def _params(request: CompletionRequest) -> SamplingParams:
    """How to choose tokens. A seed that is drawn is drawn here, once, and so kept when the request is replayed."""
    seed = secrets.randbits(63) if request.seed is None else request.seed
    return SamplingParams(request.temperature, request.top_p, seed)
