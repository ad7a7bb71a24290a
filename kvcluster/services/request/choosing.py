"""The next token of each text that reached its end of what is known, and how likely it was where somebody asks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcluster.engine.likelihood import Likely, likelihoods
from kvcluster.engine.sampling import next_tokens, without_tokens
from kvcluster.services.completion import Likelihood
from kvcluster.services.request.generation import Generation

if TYPE_CHECKING:
    import torch

    from kvcluster.engine.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ChosenToken:
    token_id: int
    likelihood: Likelihood | None = None


def chosen_tokens(logits: torch.Tensor, texts: Sequence[Generation], tokenizer: Tokenizer) -> list[ChosenToken]:
    """One for each text, whose row of `logits` is in its place. A text that must go on does not choose its end."""
    unending = {row: text.order.end_ids for row, text in enumerate(texts) if text.must_go_on}
    params, keys = [text.order.params for text in texts], [text.draw_key for text in texts]
    chosen = next_tokens(without_tokens(logits, unending), params, keys)
    wanted = {row: text.order.logprobs for row, text in enumerate(texts) if text.order.logprobs is not None}
    if not wanted:
        return [ChosenToken(token_id) for token_id in chosen]
    rows = list(wanted)
    found = likelihoods(logits[rows], [chosen[row] for row in rows], list(wanted.values()))
    said = {row: _in_words(likely, tokenizer) for row, likely in zip(rows, found, strict=True)}
    return [ChosenToken(token_id, said.get(row)) for row, token_id in enumerate(chosen)]


def _in_words(likely: Likely, tokenizer: Tokenizer) -> Likelihood:
    others = tuple((tokenizer.decode_alone(token_id), logprob) for token_id, logprob in likely.others)
    return Likelihood(tokenizer.decode_alone(likely.token_id), likely.logprob, others)
