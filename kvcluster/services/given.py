"""What callers give as JSON, whichever way it comes: what a batch file's lines and bodies over HTTP are both held to.

Three predicates, the bounds, what changes no text, and the gaps of JSON that are closed. The tables of checks are each
room's own (`kvcluster.services.batch.fields`, `actors.openai.fields`), as are the sentences and what becomes of them.

JSON's types count: "5" and 5.0 are no whole numbers, true is no 1, and half a surrogate pair is no text.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

MOST_TOKENS = 2**31 - 1
MOST_STOPS = 4
LONGEST_STOP = 1024  # each is looked for at every token, and held back as far as a text may begin it
LONGEST_SALT = 256
_SHOWN_CHARACTERS = 40

LET_BE = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "request_id",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
"""They change no text that is answered, here or at OpenAI's: whatever stands there is not looked at."""

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "add_special_tokens": (True,),
    "echo": (False,),
    "suffix": ("",),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "top_k": (0, -1),
    "min_p": (0,),
    "min_tokens": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "early_stopping": (False,),
    "sample": (0,),
    "stream": (False,),
    "stream_options": ({},),
    "stop_token_ids": ([],),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "return_token_ids": (False,),
    "priority": (0,),
}
"""An answer would depend on them; these values, where a room has nothing better to say of the field, change nothing."""


class NotJson(ValueError):
    """What Python's parser takes and JSON leaves open, or has not. One sentence, without the name of the whole."""


@dataclass(frozen=True, slots=True)
class Objection:
    """Why a field is not passed over: `code` for programs; `name` as it is shown, and what to do about it."""

    code: str
    name: str
    sentence: str


def objection(name: str, value: object, document: Mapping[str, Any]) -> Objection | None:
    """Why `name`, which a room does not take, cannot be passed over in `document`; None where it changes nothing."""
    if name in LET_BE or (name == "tools" and document.get("tool_choice") == "none"):  # none may be called
        return None
    known = shown(name)[1:-1]
    if name not in NEUTRAL:
        return Objection("unknown_field", known, f"{known} is not supported: remove it")
    if is_neutral(name, value):
        return None
    allowed = " or ".join(shown(neutral) for neutral in NEUTRAL[name])
    return Objection("unsupported_field", known, f"{known} is not supported: leave it out, or give {allowed}")


def is_neutral(name: str, value: object) -> bool:
    """Whether `value` says what is done anyway."""
    return any(alike(value, neutral) for neutral in NEUTRAL[name])


def alike(value: object, other: object) -> bool:
    """Equal as JSON has it: 0 and 0.0 are, 0 and false are not."""
    return isinstance(value, bool) == isinstance(other, bool) and value == other


def is_whole(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def is_text(value: object) -> bool:
    """Half a surrogate pair is valid JSON and no text: neither a tokenizer nor UTF-8 takes it."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown(value: object) -> str:
    """`value` as it stands in what was given, shortened to what fits into a sentence.

    Encoded piece by piece, and no further than is shown: a value as deep as the parser allows would otherwise end in
    a RecursionError.
    """
    text = ""
    for piece in json.JSONEncoder().iterencode(value):
        text += piece
        if len(text) > _SHOWN_CHARACTERS:
            return text[: _SHOWN_CHARACTERS - 3] + "..."
    return text


def object_of_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For `json.loads`, as object_pairs_hook.

    Raises:
        NotJson: a field stands twice, and Python would take the last.
    """
    fields = dict(pairs)
    if len(fields) != len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise NotJson(f"the field {shown(twice)} stands twice in one object")
    return fields


def no_number(name: str) -> NoReturn:
    """For `json.loads`, as parse_constant: raises NotJson for NaN and the infinities."""
    raise NotJson(f"{name} is no number in JSON")
