"""One input line's JSON object, checked field by field: a request, or the sentence that says which field is wrong.

The form is an OpenAI Batch line for /v1/completions. A field that we do not know is refused, because ignoring it
could change the output; `model`, `user` and `metadata` are known and change nothing. Null means the default, as
there. A table holds one check a field; each gives the value as the engine takes it, or raises `WrongField`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kvcluster.services.completion import MOST_CHOICES, CompletionRequest

URL = "/v1/completions"
_LINE_FIELDS = ("custom_id", "method", "url", "body")
_IGNORED = ("model", "user", "metadata")
_DRAWN = ("temperature", "top_p", "seed", "sample")
_OF_BEAMS = ("length_penalty", "early_stopping")
_MOST_STOPS = 4
_LONGEST_SALT = 256
_MOST_PENALTY = 10
_SHOWN_CHARACTERS = 40


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
    if not isinstance(custom_id, str) or not custom_id or not _encodable(custom_id):
        raise _wrong("custom_id", custom_id, "a text that is not empty")
    return custom_id


def request_of(document: Mapping[str, Any]) -> CompletionRequest:
    """The request that the line asks for.

    Raises:
        WrongField: the first field, in the order method, url, unknown ones, body, that is wrong.
    """
    for name, wanted in (("method", "POST"), ("url", URL)):
        if _required(document, name) != wanted:
            raise _wrong(name, document[name], wanted)
    _refuse_unknown(document, _LINE_FIELDS, "")
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
    _refuse_unknown(body, (*_CHECKS, *_IGNORED), "body.")
    if body.get("prompt") is None:
        raise WrongField("missing_field", "body.prompt is missing")
    given = {name: body[name] for name in _CHECKS if body.get(name) is not None}
    _refuse_both(given)
    return CompletionRequest(**{name: _CHECKS[name](f"body.{name}", value) for name, value in given.items()})


def _refuse_both(given: Mapping[str, Any]) -> None:
    """A beam search draws nothing, and only a beam search weighs lengths: what would be ignored is refused.

    A temperature of 0 says the same.
    """
    is_beams = given.get("use_beam_search") is True
    for name in _DRAWN if is_beams else _OF_BEAMS:
        if name in given and (name, given[name]) != ("temperature", 0):
            where = "not be given with" if is_beams else "be given with"
            raise WrongField("invalid_value", f"body.{name} must {where} use_beam_search true")


def _required(document: Mapping[str, Any], name: str) -> Any:
    if name not in document:
        raise WrongField("missing_field", f"{name} is missing")
    return document[name]


def _refuse_unknown(document: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    for name in document:
        if name not in known:
            raise WrongField("unknown_field", f"{where}{shown(name)[1:-1]} is not supported: remove it")


def _wrong(name: str, value: object, wanted: str) -> WrongField:
    return WrongField("invalid_value", f"{name} is {shown(value)}, and must be {wanted}")


def shown(value: object) -> str:
    """`value` as it stands in the line, shortened to what fits into a sentence.

    Encoded piece by piece, and no further than is shown: a value as deep as the parser allows would otherwise end in
    a RecursionError.
    """
    text = ""
    for piece in json.JSONEncoder().iterencode(value):
        text += piece
        if len(text) > _SHOWN_CHARACTERS:
            return text[: _SHOWN_CHARACTERS - 3] + "..."
    return text


def _encodable(text: str) -> bool:
    """Half a surrogate pair is valid JSON and no text: neither a tokenizer nor UTF-8 takes it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _whole(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _prompt(name: str, value: object) -> str | tuple[int, ...]:
    if isinstance(value, str) and value and _encodable(value):
        return value
    if isinstance(value, list) and value and all(_whole(token, 0, 2**31 - 1) for token in value):
        return tuple(value)
    raise _wrong(name, value, "a text or a list of token ids, not empty")


def _max_tokens(name: str, value: object) -> object:
    if not _whole(value, 1, 2**31 - 1):
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
    if not _whole(value, -(2**63), 2**63 - 1):
        raise _wrong(name, value, "a whole number of 64 bits")
    return value


def _stop(name: str, value: object) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or len(texts) > _MOST_STOPS or not all(_is_text(text) for text in texts):
        raise _wrong(name, value, f"a text or a list of up to {_MOST_STOPS} texts, none empty")
    return tuple(texts)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != "" and _encodable(value)


def _n(name: str, value: object) -> object:
    if not _whole(value, 1, MOST_CHOICES):
        raise _wrong(name, value, f"a whole number from 1 to {MOST_CHOICES}")
    return value


def _sample(name: str, value: object) -> object:
    if not _whole(value, 0, 2**31 - 1):
        raise _wrong(name, value, "a whole number of at least 0")
    return value


def _cache_salt(name: str, value: object) -> object:
    if not isinstance(value, str) or not _encodable(value) or len(value) > _LONGEST_SALT:
        raise _wrong(name, value, f"a text of at most {_LONGEST_SALT} characters")
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
