"""How likely tokens were: natural log-probabilities of the model's own distribution, before temperature and top_p.

Of float32 logits, as they were before anything was masked: what a reader compares between requests is the model, not
how it was drawn from. Source: OpenAI's `logprobs`, and vLLM's `raw_logprobs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Likely:
    """A token that was chosen, and `others` with theirs, the likeliest first: itself too where it is one of them."""

    token_id: int
    logprob: float
    others: tuple[tuple[int, float], ...] = ()


def likelihoods(logits: torch.Tensor, chosen: Sequence[int], counts: Sequence[int]) -> list[Likely]:
    """Of each row of `logits`, [rows, vocabulary] float32, its chosen token and its `counts` likeliest."""
    logprobs = logits.log_softmax(-1)
    most = min(max(counts, default=0), logprobs.shape[-1])
    top = logprobs.topk(most)
    own = logprobs[torch.arange(len(chosen)), torch.tensor(chosen)].tolist()
    likeliest = [tuple(zip(*row, strict=True)) for row in zip(top.indices.tolist(), top.values.tolist(), strict=True)]
    return [
        Likely(token_id, logprob, others[:count])
        for token_id, logprob, others, count in zip(chosen, own, likeliest, counts, strict=True)
    ]
