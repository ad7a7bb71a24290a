"""One input line's JSON object, checked field by field: a request, or the sentence that says which field is wrong.

The form is an OpenAI Batch line for /v1/completions. A field that we do not take is refused, because ignoring it could
change the output, but for what changes nothing, which is the same as over HTTP (`kvcluster.services.given`); `model`
is not looked at. Null means the default, as there. A table holds one check a field; each gives the value as the engine
takes it, or raises `WrongField`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from kvcluster.services.completion import MOST_CHOICES, CompletionRequest
from kvcluster.services.given import (
    LONGEST_SALT,
    LONGEST_STOP,
    MOST_STOPS,
    MOST_TOKENS,
    is_neutral,
    is_text,
    is_whole,
    objection,
    shown,
)

URL = "/v1/completions"
_LINE_FIELDS = ("custom_id", "method", "url", "body")
_DRAWN = ("temperature", "top_p", "seed", "sample")
_OF_BEAMS = ("length_penalty", "early_stopping")
_APART = ("model", "best_of")  # the one is not looked at, the other is compared with `n`
_MOST_PENALTY = 10


class WrongField(ValueError):
    """`code` is for programs, the text for people: a sentence without the line's number."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


def custom_id_of(document: Mapping[str, Any]) -> str:
    """The line's own name.

    Raises:
        WrongField: it is missing or no text.
    """
    custom_id = _required(document, "custom_id")
    if not is_text(custom_id) or not custom_id:
        raise _wrong("custom_id", custom_id, "a text that is not empty")
    return str(custom_id)


def request_of(document: Mapping[str, Any]) -> CompletionRequest:
    """The request that the line asks for.

    Raises:
        WrongField: the first field, in the order method, url, unknown ones, body, that is wrong.
    """
    for name, wanted in (("method", "POST"), ("url", URL)):
        if _required(document, name) != wanted:
            raise _wrong(name, document[name], wanted)
    for name in document:
        if name not in _LINE_FIELDS:
            raise WrongField("unknown_field", f"{shown(name)[1:-1]} is not supported: remove it")
    body = _required(document, "body")
    if not isinstance(body, dict):
        raise _wrong("body", body, "an object")
    return _completion_request(body)


def asked_of(document: Mapping[str, Any]) -> bytes:
    """What of a line that `request_of` took decides its answer, in one form: whatever its spaces, the order of its
    fields, and those that change nothing.
    """
    given = {name: value for name, value in document["body"].items() if name in _CHECKS and value is not None}
    return json.dumps(given, sort_keys=True).encode()


def _completion_request(body: Mapping[str, Any]) -> CompletionRequest:
    _refuse_others(body)
    if body.get("prompt") is None:
        raise WrongField("missing_field", "body.prompt is missing")
    given = {name: body[name] for name in _CHECKS if body.get(name) is not None}
    _refuse_both(given)
    _refuse_choosing(body)
    return CompletionRequest(**{name: _CHECKS[name](f"body.{name}", value) for name, value in given.items()})


def _refuse_both(given: Mapping[str, Any]) -> None:
    """A beam search draws nothing, and only a beam search weighs lengths: what would be ignored is refused.

    A temperature of 0 says the same, and so does what is done anyway where no beams search.
    """
    is_beams = given.get("use_beam_search") is True
    for name in _DRAWN if is_beams else _OF_BEAMS:
        if name not in given or (is_beams and (name, given[name]) == ("temperature", 0)):
            continue
        if is_beams or not is_neutral(name, given[name]):
            where = "not be given with" if is_beams else "be given with"
            raise WrongField("invalid_value", f"body.{name} must {where} use_beam_search true")


def _refuse_others(body: Mapping[str, Any]) -> None:
    """Whatever is not taken, and may change the output."""
    for name, value in body.items():
        if value is None or name in _CHECKS or name in _APART:
            continue
        if other := objection(name, value, body):
            raise WrongField(other.code, f"body.{other.sentence}")


def _refuse_choosing(body: Mapping[str, Any]) -> None:
    """`best_of` says what `n` says, or nothing."""
    n, best_of = body.get("n"), body.get("best_of")
    n = 1 if n is None else n
    if best_of is not None and not (is_whole(best_of, 1, MOST_CHOICES) and best_of == n):
        raise _wrong("body.best_of", best_of, f"n, which is {shown(n)}: all texts that are drawn are answered")


def _required(document: Mapping[str, Any], name: str) -> Any:
    if name not in document:
        raise WrongField("missing_field", f"{name} is missing")
    return document[name]


def _wrong(name: str, value: object, wanted: str) -> WrongField:
    return WrongField("invalid_value", f"{name} is {shown(value)}, and must be {wanted}")


def _prompt(name: str, value: object) -> str | tuple[int, ...]:
    if isinstance(value, str) and value and is_text(value):
        return value
    if isinstance(value, list) and value and all(is_whole(token, 0, MOST_TOKENS) for token in value):
        return tuple(value)
    raise _wrong(name, value, "a text or a list of token ids, not empty")


def _max_tokens(name: str, value: object) -> object:
    if not is_whole(value, 1, MOST_TOKENS):
        raise _wrong(name, value, "a whole number of at least 1")
    return value


def _number(name: str, value: object) -> float:
    """A finite number; an integer too long for a float is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e9 or math.isnan(value):
        raise _wrong(name, value, "a number")
    return float(value)


def _temperature(name: str, value: object) -> float:
    if not 0 <= _number(name, value) <= 2:
        raise _wrong(name, value, "a number from 0 to 2")
    return _number(name, value)


def _top_p(name: str, value: object) -> float:
    if not 0 < _number(name, value) <= 1:
        raise _wrong(name, value, "a number above 0 and at most 1")
    return _number(name, value)


def _seed(name: str, value: object) -> object:
    if not is_whole(value, -(2**63), 2**63 - 1):
        raise _wrong(name, value, "a whole number of 64 bits")
    return value


def _stop(name: str, value: Any) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    are_texts = isinstance(texts, list) and all(is_text(text) for text in texts)
    if not are_texts or len(texts) > MOST_STOPS or not all(0 < len(text) <= LONGEST_STOP for text in texts):
        wanted = f"a text or a list of up to {MOST_STOPS} texts, of 1 to {LONGEST_STOP} characters each"
        raise _wrong(name, value, wanted)
    return tuple(texts)


def _n(name: str, value: object) -> object:
    if not is_whole(value, 1, MOST_CHOICES):
        raise _wrong(name, value, f"a whole number from 1 to {MOST_CHOICES}")
    return value


def _sample(name: str, value: object) -> object:
    if not is_whole(value, 0, MOST_TOKENS):
        raise _wrong(name, value, "a whole number of at least 0")
    return value


def _cache_salt(name: str, value: object) -> object:
    if not isinstance(value, str) or not is_text(value) or len(value) > LONGEST_SALT:
        raise _wrong(name, value, f"a text of at most {LONGEST_SALT} characters")
    return value


def _length_penalty(name: str, value: object) -> float:
    if abs(_number(name, value)) > _MOST_PENALTY:
        raise _wrong(name, value, f"a number from -{_MOST_PENALTY} to {_MOST_PENALTY}")
    return _number(name, value)


def _flag(name: str, value: object) -> object:
    if not isinstance(value, bool):
        raise _wrong(name, value, "true or false")
    return value


_CHECKS: Mapping[str, Callable[[str, object], Any]] = {
    "prompt": _prompt,
    "max_tokens": _max_tokens,
    "temperature": _temperature,
    "top_p": _top_p,
    "seed": _seed,
    "stop": _stop,
    "ignore_eos": _flag,
    "n": _n,
    "sample": _sample,
    "cache_salt": _cache_salt,
    "use_beam_search": _flag,
    "length_penalty": _length_penalty,
    "early_stopping": _flag,
}
