"""Choosing the next token: the most likely one, or a draw that only its own key decides.

A draw is keyed by (seed, sample, position), and each row is computed for itself, so what a request gets depends
neither on its neighbours in the batch nor on the step at which it runs: a replayed request draws the same text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from struct import pack

import torch

_LIKELY_TOKENS = 1024  # most nuclei are smaller; sorting a vocabulary of 262,144 takes 20 times as long


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """`temperature` 0 takes the most likely token. `top_p` draws among the fewest tokens whose mass reaches it."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature is a finite number of at least 0, not {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is above 0 and at most 1, not {self.top_p}")


@dataclass(frozen=True, slots=True)
class DrawKey:
    """Which draw of a seed: the number of the sample, and the position of the token that is chosen."""

    sample: int
    position: int


def next_tokens(logits: torch.Tensor, params: Sequence[SamplingParams], keys: Sequence[DrawKey]) -> list[int]:
    """One token id for each row of `logits`, [rows, vocabulary] float32; `params` and `keys` go with the rows."""
    chosen: list[int] = logits.argmax(-1).tolist()
    for row, (how, key) in enumerate(zip(params, keys, strict=True)):
        if how.temperature > 0:
            chosen[row] = _drawn(logits[row], how, key)
    return chosen


def without_tokens(logits: torch.Tensor, forbidden: Mapping[int, frozenset[int]]) -> torch.Tensor:
    """The same logits, but that each of these rows cannot choose those tokens; the argument stays as it is."""
    if not any(forbidden.values()):
        return logits
    masked, vocabulary = logits.clone(), logits.shape[-1]
    for row, token_ids in forbidden.items():
        masked[row, [token_id for token_id in token_ids if token_id < vocabulary]] = float("-inf")
    return masked


def _drawn(logits: torch.Tensor, how: SamplingParams, key: DrawKey) -> int:
    scaled = logits.double()
    probabilities = ((scaled - scaled.max()) / how.temperature).softmax(-1)
    ids = None if how.top_p == 1 else _nucleus(probabilities, how.top_p)
    mass = (probabilities if ids is None else probabilities[ids]).cumsum(-1)
    index = int(torch.searchsorted(mass, _uniform(how.seed, key) * mass[-1], right=True))
    index = min(index, len(mass) - 1)  # where rounding takes the product up to the whole mass
    return index if ids is None else int(ids[index])


def _nucleus(probabilities: torch.Tensor, top_p: float) -> torch.Tensor:
    """The ids of the fewest tokens whose mass reaches `top_p`, the most likely first; at least one."""
    for count in (min(_LIKELY_TOKENS, len(probabilities)), len(probabilities)):
        likely = probabilities.topk(count)
        before = likely.values.cumsum(-1) - likely.values
        inside = int((before < top_p).sum())
        if inside < count:
            break
    return likely.indices[:inside]


def _uniform(seed: int, key: DrawKey) -> float:
    """A number in [0, 1) that the key decides: 53 bits of its hash."""
    text = f"{seed}/".encode() + pack("<qq", key.sample, key.position)
    return (int.from_bytes(sha256(text).digest()[:8], "big") >> 11) * 2.0**-53
