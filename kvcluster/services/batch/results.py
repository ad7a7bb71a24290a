"""An output line: an OpenAI Batch result, written and read back.

    {"id": "batch_req_7", "custom_id": ..., "response": {"status_code": 200, "request_id": "req_7_9c1f0a2b3d4e",
     "body": {a text_completion object}}, "error": null}

`id` carries the input line's number: by it a job that is run again knows what is done. `request_id`, which is any text
to OpenAI's tools, carries a digest of what the line asked for: by it such a job knows a line that was edited. A line
that cannot be answered has the status that a server would give (400 for bad input), `response.body.error` as a server
would word it, and the same code and sentence in `error`, because both places are read by tools. `custom_id` is null
where the input line has none that can be read.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from kvcluster.services.completion import TOO_MANY, Completion, Refused

_ID = re.compile(r"batch_req_([1-9][0-9]*)", re.ASCII)
_REQUEST_ID = re.compile(r"req_[0-9]+_([0-9a-f]+)", re.ASCII)
LINE_START = b'{"id": "batch_req_'


@dataclass(frozen=True, slots=True)
class Result:
    """`text` and `model` are None where the line was refused, `message` and `code` where it was not.

    `digest` is `input.Line`'s, as the line was then; empty in a file that an earlier version wrote.
    """

    line_number: int
    custom_id: str | None
    status_code: int
    text: str | None
    model: str | None
    message: str | None
    code: str | None
    digest: str = ""

    @property
    def failed(self) -> bool:
        return self.status_code != 200


@dataclass(frozen=True, slots=True)
class Answer:
    """What is to be written for one input line."""

    line_number: int
    custom_id: str | None
    outcome: Completion | Refused
    digest: str = ""


def encode_result(answer: Answer, *, model: str, created: int) -> bytes:
    """The whole line with its end. Text stays readable: only what JSON must escape is escaped."""
    number, outcome = answer.line_number, answer.outcome
    if isinstance(outcome, Completion):
        status, body, error = 200, _completion_body(number, outcome, model, created), None
    else:
        error = {"code": outcome.code, "message": f"line {number}: {outcome.message}"}
        status, body = outcome.status_code, {"error": {**error, "type": _error_type(outcome), "param": None}}
    request_id = f"req_{number}_{answer.digest}" if answer.digest else f"req_{number}"
    response = {"status_code": status, "request_id": request_id, "body": body}
    line = {"id": f"batch_req_{number}", "custom_id": answer.custom_id, "response": response, "error": error}
    return json.dumps(line, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def _completion_body(number: int, done: Completion, model: str, created: int) -> dict[str, Any]:
    choices = [
        {"index": index, "text": choice.text, "logprobs": None, "finish_reason": choice.finish_reason}
        for index, choice in enumerate(done.choices)
    ]
    usage = {
        "prompt_tokens": done.prompt_tokens,
        "completion_tokens": done.completion_tokens,
        "total_tokens": done.prompt_tokens + done.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": done.cached_tokens},
    }
    head = {"id": f"cmpl-{number}", "object": "text_completion", "created": created, "model": model}
    return {**head, "choices": choices, "usage": usage}


def _error_type(refused: Refused) -> str:
    if refused.status_code == TOO_MANY:
        return "resource_limit_error"
    return "invalid_request_error" if refused.status_code < 500 else "server_error"


def decode_result(raw: bytes) -> Result | None:
    """The result that `raw` holds, or None where it is not one of ours."""
    try:
        line = json.loads(raw)
        number = int(_ID.fullmatch(line["id"])[1])  # type: ignore[index]  # a TypeError, where it does not match
        custom_id, status = line["custom_id"], line["response"]["status_code"]
        said = _completed(line["response"]["body"]) if status == 200 else _refused(line["error"])
        digest = _digest_in(line["response"].get("request_id"))
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        return None
    all_texts = all(isinstance(text, str | None) for text in said) and sum(text is None for text in said) == 2
    known = all_texts and isinstance(custom_id, str | None) and type(status) is int
    return Result(number, custom_id, status, *said, digest) if known else None


def _digest_in(request_id: object) -> str:
    found = _REQUEST_ID.fullmatch(request_id) if isinstance(request_id, str) else None
    return found[1] if found else ""


Said = tuple[Any, Any, Any, Any]  # text, model, message, code: two of them are None


def _completed(body: dict[str, Any]) -> Said:
    return body["choices"][0]["text"], body["model"], None, None


def _refused(error: dict[str, Any]) -> Said:
    return None, None, error["message"], error["code"]
