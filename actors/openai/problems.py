"""Every error that a client is told, in OpenAI's form: a status, its headers, and a body that names field and remedy.

    400 a field, or a body that is no JSON object     401 the API key      404 a model, or a route   405 the method
    408 the body's time     413 its size              429 not now          503 nobody computes it now

A 429 or 503 carries Retry-After (whole seconds, at least one) and the finer `retry-after-ms`, which OpenAI's clients
prefer. 500 is ours alone: no bytes that a client sends lead there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from actors.openai.seams import Unavailable
from kvcluster.services.completion import BAD_REQUEST, TOO_MANY, UNAVAILABLE, Refused

UNAUTHORIZED, NOT_FOUND, TOO_SLOW, TOO_LARGE, OUR_BUG = 401, 404, 408, 413, 500
SOON_S = 1.0  # for whoever is sent away and not told for how long

_TYPES = {TOO_MANY: "rate_limit_error", OUR_BUG: "server_error", UNAVAILABLE: "service_unavailable_error"}


class Problem(Exception):
    """What ends a request. `param` is the field that it is about, `memory` what is said beside it of KV memory."""

    def __init__(
        self,
        status: int,
        code: str,
        sentence: str,
        *,
        param: str | None = None,
        memory: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(sentence)
        self.status = status
        self.code = code
        self.param = param
        self.memory = memory

    @property
    def retry_after_s(self) -> float | None:
        return self.memory["retry_after_s"] if self.memory else None

    def body(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status, "invalid_request_error")
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": error | ({"kvcluster": dict(self.memory)} if self.memory else {})}

    def headers(self) -> dict[str, str]:
        headers = (
            {"connection": "close"} if self.status in (TOO_SLOW, TOO_LARGE) else {}
        )  # what is still sent is not read
        if self.retry_after_s is None:
            return headers
        return headers | {
            "retry-after": str(max(1, math.ceil(self.retry_after_s))),
            "retry-after-ms": str(math.ceil(self.retry_after_s * 1000)),
        }


def wrong(param: str, sentence: str, *, code: str = "invalid_value") -> Problem:
    """A field that cannot be taken."""
    return Problem(BAD_REQUEST, code, sentence, param=param)


def refused(refusal: Refused) -> Problem:
    """What whoever computes said; it decides the status, within those that a client knows what to do about."""
    status = refusal.status_code if refusal.status_code in (BAD_REQUEST, TOO_MANY, UNAVAILABLE) else UNAVAILABLE
    retry_after_s = refusal.retry_after_s
    if status != BAD_REQUEST and retry_after_s is None:
        retry_after_s = SOON_S
    memory = _memory(refusal.code, retry_after_s, refusal.need_bytes, refusal.free_bytes)
    is_a_field = status == BAD_REQUEST and refusal.need_bytes is None  # memory has nothing to do with it
    return Problem(status, refusal.code, refusal.message, param=refusal.param, memory=None if is_a_field else memory)


def unavailable(lost: Unavailable) -> Problem:
    """Nobody computes it now."""
    return Problem(UNAVAILABLE, lost.reason, str(lost), memory=_memory(lost.reason, lost.retry_after_s))


def crowded(code: str, sentence: str, *, retry_after_s: float) -> Problem:
    """More than are taken at one time."""
    return Problem(TOO_MANY, code, sentence, memory=_memory(code, retry_after_s))


def our_bug() -> Problem:
    """What should not have happened; what it was stands in the log, not in the answer."""
    return Problem(OUR_BUG, "internal_error", "the server failed at this request by an error of its own: it is logged")


def _memory(
    reason: str, retry_after_s: float | None, need_bytes: int | None = None, free_bytes: int | None = None
) -> dict[str, Any]:
    return {
        "reason": reason,
        "need_bytes": need_bytes,
        "free_bytes": free_bytes,
        "retry_after_s": retry_after_s,
    }
