"""The body of a request as one JSON object, or the problem that it is.

What JSON leaves open is closed: no NaN, no key twice, no number that Python would take seconds for, no depth that its
parser cannot hold.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from actors.openai.problems import Problem
from kvcluster.services.completion import BAD_REQUEST
from kvcluster.services.given import NotJson, no_number, object_of_pairs

_IDENTITY = ("", "identity")


def check_headers(headers: Mapping[str, str]) -> None:
    """Nothing, where the body may be JSON as it is.

    Raises:
        Problem: they say that it is something else.
    """
    kind = headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise _unreadable("the body must be application/json, and content-type says otherwise", "invalid_content_type")
    if headers.get("content-encoding", "").strip().lower() not in _IDENTITY:
        raise _unreadable("the body must not be compressed: leave content-encoding out", "invalid_content_encoding")


def document_of(body: bytes) -> dict[str, Any]:
    """The object that these bytes are.

    Raises:
        Problem: they are none.
    """
    if not body.strip():
        raise _unreadable("the body is empty, and must be a JSON object")
    try:
        document = json.loads(body.decode(), object_pairs_hook=object_of_pairs, parse_constant=no_number)
    except UnicodeDecodeError as error:
        raise _unreadable(f"the body is not UTF-8 at byte {error.start + 1}") from None
    except json.JSONDecodeError as error:
        raise _unreadable(f"the body is not JSON at character {error.pos + 1}: {error.msg}") from None
    except NotJson as error:
        raise _unreadable(f"the body is not JSON that is taken: {error}") from None
    except ValueError:
        raise _unreadable("the body is not JSON that can be read: a number in it is too long") from None
    except RecursionError:
        raise _unreadable("the body is nested too deeply") from None
    if not isinstance(document, dict):
        raise _unreadable("the body must be a JSON object")
    return document


def _unreadable(sentence: str, code: str = "invalid_json") -> Problem:
    return Problem(BAD_REQUEST, code, sentence)
