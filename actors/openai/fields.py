"""Each field that a request may have, in one place: what it may be, and what becomes of it.

    TAKEN      it is checked, and the answer depends on it
    LET_BE     it changes no text that is answered, here or at OpenAI's: whatever stands there is not looked at
    NEUTRAL    the answer would depend on it, and we have it not: only the values that change nothing are taken
    any other  is refused by name, as OpenAI's own server refuses what it does not know

So nothing that would have changed the output is passed over in silence. LET_BE and NEUTRAL stand in
`kvcluster.services.given`, and hold for a batch file's lines too. Null is the default everywhere, as there.
`ignore_eos`, `min_tokens`, `cache_salt`, `top_k` and what follows it are vLLM's, which load generators send.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from actors.openai.checks import Check, flag, must_be, number, part, text, texts, whole
from actors.openai.limits import Limits
from actors.openai.problems import wrong
from kvcluster.services.completion import MOST_CHOICES
from kvcluster.services.given import LONGEST_SALT, LONGEST_STOP, MOST_STOPS, MOST_TOKENS, objection

LONGEST_NAME = 256

TAKEN: Mapping[str, Check] = {
    "model": text(LONGEST_NAME),
    "max_tokens": whole(1, MOST_TOKENS),
    "max_completion_tokens": whole(1, MOST_TOKENS),
    "min_tokens": whole(0, MOST_TOKENS),
    "n": whole(1, MOST_CHOICES),
    "best_of": whole(1, MOST_CHOICES),
    "temperature": number(0, 2),
    "top_p": part,
    "seed": whole(-(2**63), 2**63 - 1),
    "stop": texts(MOST_STOPS, LONGEST_STOP),
    "stream": flag,
    "ignore_eos": flag,
    "cache_salt": text(LONGEST_SALT),
}
_OF_REQUEST = ("min_tokens", "n", "temperature", "top_p", "seed", "stop", "ignore_eos", "cache_salt")


def given(document: Mapping[str, Any], own: Mapping[str, Check]) -> dict[str, Any]:
    """The fields of `document` that are taken, checked; `own` are the checks that a route has beside the common ones.

    Raises:
        Problem: the first field that is wrong or not taken.
    """
    checks = {**TAKEN, **own}
    values = {}
    for name, value in document.items():
        if value is None:
            continue
        if name in checks:
            values[name] = checks[name](name, value)
        elif other := objection(name, value, document):
            raise wrong(other.name, other.sentence, code=other.code)
    if "model" not in values:
        raise wrong("model", "model is missing: name one of those that GET /v1/models lists", code="missing_field")
    return values


def of_request(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the fields that the request for each prompt has under the same name."""
    return {name: values[name] for name in _OF_REQUEST if name in values}


def max_tokens_of(values: Mapping[str, Any]) -> int | None:
    """What either of the two names says, or None.

    Raises:
        Problem: they say different things.
    """
    tokens = {values[name] for name in ("max_tokens", "max_completion_tokens") if name in values}
    if len(tokens) > 1:
        raise wrong("max_tokens", "max_tokens and max_completion_tokens differ: give one of them")
    return tokens.pop() if tokens else None


def check_choices(values: Mapping[str, Any], limits: Limits, *, prompts: int) -> None:
    """Nothing, where so many texts may be asked for.

    Raises:
        Problem: `best_of` would choose among more than are answered, or they are too many.
    """
    n = values.get("n", 1)
    if values.get("best_of", n) != n:
        raise must_be("best_of", values["best_of"], f"n, which is {n}: all texts that are drawn are answered")
    if n > limits.most_n:
        raise wrong("n", f"n is {n}, and a prompt may be continued at most {limits.most_n} times here")
    if prompts * n > limits.most_choices:
        asked = f"n is {n}" if prompts == 1 else f"n is {n} for each of {prompts} prompts"
        raise wrong("n", f"{asked}, and one request may ask for at most {limits.most_choices} texts")
