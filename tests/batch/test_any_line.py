"""No line of the input or of the output can stop a job, whatever it holds."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kvcluster.services.batch.input import read_lines
from kvcluster.services.batch.results import Answer, Result, decode_result, encode_result
from kvcluster.services.completion import Completion, CompletionRequest, Refused
from tests.batch.stand_in import line, results, run_job, write_input

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
documents = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=12
)
bodies = st.dictionaries(
    st.sampled_from(
        ["prompt", "max_tokens", "temperature", "top_p", "seed", "stop", "ignore_eos", "model", "user", "metadata", "n"]
    ),
    documents,
)
lines = st.dictionaries(
    st.sampled_from(["custom_id", "method", "url", "body", "id"]),
    documents | bodies | st.sampled_from(["POST", "/v1/completions", "a"]),
)
anything = documents | lines | bodies.map(lambda body: {**line("a"), "body": {"prompt": "x", **body}})
same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])

NESTED = [(mark, depth) for mark in ("[]", "{}") for depth in (2, 50, 700, 1000, 100_000)]


def nested(mark: str, depth: int) -> bytes:
    """`[[[...]]]`, or `{"a": {"a": ...}}`."""
    opening, closing = ("[", "]") if mark == "[]" else ('{"a": ', "}")
    return (opening * depth + "1" + closing * depth).encode()


def in_the_place_of(field: str, value: bytes) -> bytes:
    document = line("bad", temperature=1)
    (document if field in document else document["body"])[field] = "HERE"
    return json.dumps(document).encode().replace(b'"HERE"', value)


@pytest.mark.parametrize("field", ["custom_id", "method", "url", "body", "prompt", "max_tokens", "stop", "n"])
@pytest.mark.parametrize(("mark", "depth"), NESTED)
def test_a_value_of_any_depth_is_that_lines_error(tmp_path: Path, field: str, mark: str, depth: int) -> None:
    bad = in_the_place_of(field, nested(mark, depth))
    given_lines = write_input(tmp_path / "in.jsonl", line("before"), bad, line("after"))
    progress = run_job(given_lines, tmp_path / "out.jsonl")
    found = results(tmp_path / "out.jsonl")
    assert (progress.done, progress.failed) == (3, 1)
    assert [found[number]["response"]["status_code"] for number in (1, 2, 3)] == [200, 400, 200]
    assert len(found[2]["error"]["message"]) < 200


@pytest.mark.parametrize("mark", ["[]", "{}"])
@pytest.mark.parametrize("field", ["custom_id", "prompt"])
def test_every_depth_around_the_interpreters_limit_is_that_lines_error(tmp_path: Path, field: str, mark: str) -> None:
    depths = range(sys.getrecursionlimit() - 300, sys.getrecursionlimit() + 10)  # the test itself runs some 100 deep
    bad = [in_the_place_of(field, nested(mark, depth)) for depth in depths]
    found = list(read_lines(write_input(tmp_path / "in.jsonl", *bad)))
    assert len(found) == len(depths)
    assert all(isinstance(one.asked, Refused) for one in found)


@same_folder
@given(document=anything)
@example(document={**line("a"), "custom_id": float("nan")})
def test_any_document_is_a_request_or_a_refusal_and_its_result_can_be_read_back(tmp_path: Path, document: Any) -> None:
    given_lines = write_input(tmp_path / "in.jsonl", json.dumps(document).encode())
    [one] = read_lines(given_lines)
    assert isinstance(one.asked, CompletionRequest | Refused)
    outcome = one.asked if isinstance(one.asked, Refused) else Completion("text", "stop", 1, 1)
    written = encode_result(Answer(one.number, one.custom_id, outcome, one.digest), model="m", created=1)
    assert written.count(b"\n") == 1
    result = decode_result(written)
    assert result is not None
    assert (result.line_number, result.custom_id, result.digest) == (one.number, one.custom_id, one.digest)


@same_folder
@given(raw=st.binary() | st.text().map(str.encode))
def test_any_bytes_are_as_many_lines_as_are_not_blank(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "in.jsonl").write_bytes(raw)
    wanted = [number for number, part in enumerate(raw.split(b"\n"), start=1) if part.strip()]
    assert [one.number for one in read_lines(tmp_path / "in.jsonl")] == wanted


results_like = st.fixed_dictionaries(
    {
        "id": st.sampled_from(["batch_req_1", "batch_req_0", "batch_req_" + "9" * 5_000]) | documents,
        "custom_id": st.none() | st.text() | documents,
        "response": st.fixed_dictionaries(
            {
                "status_code": st.sampled_from([200, 400, True, 200.0, "200"]) | documents,
                "request_id": st.sampled_from(["req_1", "req_1_0123456789ab", "req_1_\u0661"]) | documents,
                "body": st.fixed_dictionaries(
                    {"choices": st.just([{"text": "a"}]) | documents, "model": st.just("m") | documents}
                )
                | documents,
            }
        ),
        "error": st.fixed_dictionaries({"message": st.just("no") | documents, "code": documents}) | documents,
    }
)


@given(document=documents | results_like)
def test_any_line_of_the_output_is_a_result_or_none(document: Any) -> None:
    result = decode_result(json.dumps(document).encode())
    assert result is None or sound(result)


def sound(result: Result) -> bool:
    refusal, answer = (result.message, result.code), (result.text, result.model)
    told, others = (refusal, answer) if result.failed else (answer, refusal)
    is_told = all(isinstance(text, str) for text in told) and others == (None, None)
    return is_told and result.line_number > 0 and type(result.status_code) is int


@pytest.mark.parametrize(("mark", "depth"), NESTED)
def test_a_nested_line_of_the_output_is_no_result(mark: str, depth: int) -> None:
    assert decode_result(nested(mark, depth)) is None
