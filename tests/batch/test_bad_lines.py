"""Bad input gets an error line that names the line and the field, and every other line is served."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvcluster.services.batch.input import LONGEST_LINE_BYTES, BatchFileError, check_input, read_lines
from kvcluster.services.completion import CompletionRequest, Refused
from tests.batch.stand_in import line, results, run_job, write_input

GOOD = line("good")


def changed(**fields: Any) -> dict[str, Any]:
    return {**line("bad"), **fields}


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in line("bad").items() if key != name}


BAD_LINES: list[tuple[Any, str, str]] = [
    (b"{", "invalid_json", "the line is not JSON"),
    (b"[]", "invalid_json", "the line is not a JSON object"),
    (b"null", "invalid_json", "the line is not a JSON object"),
    (b'{"custom_id": "a"', "invalid_json", "the line is not JSON"),
    (b"\xef\xbb\xbf" + json.dumps(line("b")).encode(), "invalid_json", "byte order mark"),
    (b'{"custom_id": "\xff"}', "not_utf8", "the line is not UTF-8 at byte 16"),
    (b'{"custom_id": "x", "custom_id": "y"}', "invalid_json", 'the field "custom_id" stands twice'),
    (b'{"n": ' + b"9" * 5_000 + b"}", "invalid_json", "the line is not JSON"),
    (b"[" * 100_000, "invalid_json", "nested too deeply"),
    (b'{"custom_id": "' + b"x" * LONGEST_LINE_BYTES + b'"}', "line_too_long", "longer than 8.0 MiB"),
    (without("custom_id"), "missing_field", "custom_id is missing"),
    (changed(custom_id=""), "invalid_value", 'custom_id is ""'),
    (changed(custom_id=3), "invalid_value", "custom_id is 3"),
    (changed(custom_id="\ud800"), "invalid_value", "custom_id is"),
    (without("method"), "missing_field", "method is missing"),
    (changed(method="GET"), "invalid_value", 'method is "GET", and must be POST'),
    (without("url"), "missing_field", "url is missing"),
    (changed(url="/v1/chat/completions"), "invalid_value", "must be /v1/completions"),
    (without("body"), "missing_field", "body is missing"),
    (changed(body=[]), "invalid_value", "body is [], and must be an object"),
    (changed(priority=1), "unknown_field", "priority is not supported"),
    (line("bad", presence_penalty=1), "unsupported_field", "body.presence_penalty is not supported: leave it out"),
    (line("bad", no_such_field=1), "unknown_field", "body.no_such_field is not supported: remove it"),
    (line("bad", best_of=2), "invalid_value", "body.best_of is 2, and must be n, which is 1"),
    (line("bad", n=0), "invalid_value", "body.n is 0, and must be a whole number from 1 to 128"),
    (line("bad", n=129), "invalid_value", "body.n is 129"),
    (line("bad", sample=-1), "invalid_value", "body.sample is -1"),
    (line("bad", cache_salt=7), "invalid_value", "body.cache_salt is 7, and must be a text"),
    (line("bad", cache_salt="s" * 257), "invalid_value", "body.cache_salt is"),
    (line("bad", use_beam_search="yes"), "invalid_value", "body.use_beam_search is"),
    (line("bad", use_beam_search=True, seed=1), "invalid_value", "body.seed must not be given with use_beam_search"),
    (line("bad", use_beam_search=True, temperature=0.5), "invalid_value", "body.temperature must not be given with"),
    (line("bad", length_penalty=2), "invalid_value", "body.length_penalty must be given with use_beam_search"),
    (line("bad", use_beam_search=True, length_penalty=11), "invalid_value", "body.length_penalty is 11"),
    (line("bad", stream=True), "unsupported_field", "body.stream is not supported: leave it out, or give false"),
    (changed(body={}), "missing_field", "body.prompt is missing"),
    (line("bad", None), "missing_field", "body.prompt is missing"),
    (line("bad", ""), "invalid_value", 'body.prompt is "", and must be'),
    (line("bad", []), "invalid_value", "body.prompt is [], and must be"),
    (line("bad", ["a", "b"]), "invalid_value", "body.prompt is"),
    (line("bad", [[1], [2]]), "invalid_value", "body.prompt is"),
    (line("bad", [True]), "invalid_value", "body.prompt is [true]"),
    (line("bad", [-1]), "invalid_value", "body.prompt is [-1]"),
    (line("bad", "half \ud83d"), "invalid_value", "body.prompt is"),
    (line("bad", max_tokens=0), "invalid_value", "body.max_tokens is 0, and must be a whole number of at least 1"),
    (line("bad", max_tokens=-5), "invalid_value", "body.max_tokens is -5"),
    (line("bad", max_tokens=1.5), "invalid_value", "body.max_tokens is 1.5"),
    (line("bad", max_tokens=True), "invalid_value", "body.max_tokens is true"),
    (line("bad", max_tokens="16"), "invalid_value", 'body.max_tokens is "16"'),
    (line("bad", temperature=float("nan")), "invalid_json", "NaN is no number in JSON"),
    (line("bad", temperature=float("inf")), "invalid_json", "Infinity is no number in JSON"),
    (line("bad", temperature=10**400), "invalid_value", "body.temperature is"),
    (line("bad", temperature=-0.1), "invalid_value", "body.temperature is -0.1, and must be a number from 0 to 2"),
    (line("bad", temperature="hot"), "invalid_value", 'body.temperature is "hot"'),
    (line("bad", top_p=0), "invalid_value", "body.top_p is 0, and must be a number above 0 and at most 1"),
    (line("bad", top_p=1.1), "invalid_value", "body.top_p is 1.1"),
    (line("bad", seed=1.5), "invalid_value", "body.seed is 1.5"),
    (line("bad", seed=2**63), "invalid_value", "body.seed is 9223372036854775808"),
    (line("bad", stop=["a"] * 5), "invalid_value", "body.stop is"),
    (line("bad", stop="a" * 1025), "invalid_value", "texts, of 1 to 1024 characters each"),
    (line("bad", stop=""), "invalid_value", 'body.stop is "", and must be'),
    (line("bad", stop=["a", 1]), "invalid_value", "body.stop is"),
    (line("bad", ignore_eos=1), "invalid_value", "body.ignore_eos is 1, and must be true or false"),
    (changed(custom_id="good"), "duplicate_custom_id", "custom_id is that of line 1"),
]


@pytest.mark.parametrize(("bad", "code", "sentence"), BAD_LINES, ids=[sentence for _, _, sentence in BAD_LINES])
def test_a_bad_line_is_answered_with_its_error_and_the_others_are_served(
    tmp_path: Path, bad: dict[str, Any] | bytes, code: str, sentence: str
) -> None:
    given = write_input(tmp_path / "in.jsonl", GOOD, bad, line("after"))
    progress = run_job(given, tmp_path / "out.jsonl")
    found = results(tmp_path / "out.jsonl")
    assert (progress.done, progress.failed) == (3, 1)
    assert [found[number]["response"]["status_code"] for number in (1, 2, 3)] == [200, 400, 200]
    assert found[2]["error"]["code"] == found[2]["response"]["body"]["error"]["code"] == code
    assert found[2]["error"]["message"].startswith("line 2: ")
    assert sentence in found[2]["error"]["message"]
    assert len(found[2]["error"]["message"]) < 200


def test_a_field_name_of_any_length_does_not_make_a_long_sentence(tmp_path: Path) -> None:
    given = write_input(tmp_path / "in.jsonl", line("bad", **{"x" * 10_000: 1}))
    (one,) = read_lines(given)
    assert isinstance(one.asked, Refused)
    assert len(one.asked.message) < 100


def test_of_three_lines_with_one_custom_id_the_first_is_served(tmp_path: Path) -> None:
    given = write_input(tmp_path / "in.jsonl", line("a", "one"), line("a", "two"), line("a", "three"))
    first, *others = read_lines(given)
    assert isinstance(first.asked, CompletionRequest)
    for other in others:
        assert isinstance(other.asked, Refused)
        assert "custom_id is that of line 1" in other.asked.message


def test_blank_lines_get_no_result_and_count_as_lines(tmp_path: Path) -> None:
    given = write_input(tmp_path / "in.jsonl", b"", line("a"), b"  \t\r", line("b"), b"")
    assert [(one.number, one.custom_id) for one in read_lines(given)] == [(2, "a"), (4, "b")]


def test_a_last_line_without_its_end_and_windows_line_ends_are_read(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"\r\n".join(json.dumps(line(name)).encode() for name in "abc"))
    assert [one.custom_id for one in read_lines(tmp_path / "in.jsonl")] == ["a", "b", "c"]
    assert all(isinstance(one.asked, CompletionRequest) for one in read_lines(tmp_path / "in.jsonl"))


def test_a_line_of_exactly_the_longest_length_is_read_and_one_byte_more_is_not(tmp_path: Path) -> None:
    text = json.dumps(line("a", "x")).encode()
    fits = text.replace(b'"x"', b'"' + b"x" * (LONGEST_LINE_BYTES - len(text)) + b'"')
    given = write_input(tmp_path / "in.jsonl", fits, fits.replace(b'"a"', b'"bc"'), line("d"))
    asked = {one.number: one.asked for one in read_lines(given)}
    assert isinstance(asked[1], CompletionRequest)
    assert isinstance(asked[2], Refused)
    assert isinstance(asked[3], CompletionRequest)


def test_what_a_line_leaves_out_has_openais_defaults(tmp_path: Path) -> None:
    given = write_input(tmp_path / "in.jsonl", line("a"), line("b", **dict.fromkeys(("max_tokens", "seed", "stop"))))
    for one in read_lines(given):
        assert one.asked == CompletionRequest("hello", 16, 1.0, 1.0, None, (), False)


def test_every_field_reaches_the_request_and_three_change_nothing(tmp_path: Path) -> None:
    body = {"max_tokens": 7, "temperature": 0, "top_p": 0.5, "seed": -3, "stop": "end", "ignore_eos": True}
    more = {"model": "any", "user": "me", "metadata": {"a": [1]}}
    given = write_input(tmp_path / "in.jsonl", line("a", [1, 2], **body, **more), line("b", stop=["x", "y"]))
    first, second = (one.asked for one in read_lines(given))
    assert first == CompletionRequest((1, 2), 7, 0.0, 0.5, -3, ("end",), True)
    assert isinstance(second, CompletionRequest)
    assert second.stop == ("x", "y")


def test_an_input_that_cannot_be_read_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BatchFileError, match="No such file"):
        check_input(tmp_path / "none")
    with pytest.raises(BatchFileError, match="Is a directory"):
        check_input(tmp_path)
    with pytest.raises(BatchFileError, match="plain file"):
        check_input(Path("/dev/null"))


def test_an_input_that_is_gone_on_the_way_is_one_sentence(tmp_path: Path) -> None:
    given = write_input(tmp_path / "in.jsonl", line("a"))
    check_input(given)
    given.unlink()
    with pytest.raises(BatchFileError, match="the input cannot be read: No such file"):
        list(read_lines(given))


def test_the_examples_are_all_good() -> None:
    lines = list(read_lines(Path(__file__).parents[2] / "examples" / "prompts.jsonl"))
    assert len(lines) >= 8
    assert all(isinstance(one.asked, CompletionRequest) for one in lines)
