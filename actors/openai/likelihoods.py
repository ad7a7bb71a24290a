"""Log-probabilities in the two forms that OpenAI's routes give them.

JSON has no minus infinity: what is less likely than e**-9999 is said to be that, as vLLM does. `text_offset` counts
characters of the tokens from the beginning of the answer. A token that is a part of a character has no bytes that are
known here, and the chat's form says null for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvcluster.services.completion import Likelihood

LEAST = -9999.0
_BROKEN = "\N{REPLACEMENT CHARACTER}"


def of_completion(likelihoods: Sequence[Likelihood], *, offset: int = 0) -> dict[str, Any]:
    """The form of /v1/completions; the first token begins at character `offset`."""
    offsets = []
    for likelihood in likelihoods:
        offsets.append(offset)
        offset += len(likelihood.token)
    return {
        "tokens": [likelihood.token for likelihood in likelihoods],
        "token_logprobs": [_said(likelihood.logprob) for likelihood in likelihoods],
        "top_logprobs": [_by_token(likelihood) for likelihood in likelihoods],
        "text_offset": offsets,
    }


def _by_token(likelihood: Likelihood) -> dict[str, float]:
    """The likeliest, and the one that was taken; of two tokens with one text the likelier counts."""
    likeliest: dict[str, float] = {}
    for token, logprob in (*likelihood.others, (likelihood.token, likelihood.logprob)):
        likeliest.setdefault(token, _said(logprob))
    return likeliest


def of_chat(likelihoods: Sequence[Likelihood]) -> dict[str, Any]:
    """The form of /v1/chat/completions."""
    content = [
        _entry(likelihood.token, likelihood.logprob)
        | {"top_logprobs": [_entry(token, logprob) for token, logprob in likelihood.others]}
        for likelihood in likelihoods
    ]
    return {"content": content, "refusal": None}


def _entry(token: str, logprob: float) -> dict[str, Any]:
    octets = None if _BROKEN in token else list(token.encode(errors="surrogatepass"))
    return {"token": token, "logprob": _said(logprob), "bytes": octets}


def _said(logprob: float) -> float:
    return logprob if logprob > LEAST else LEAST  # also where it is no number
