"""Running again continues where the last run stopped: nothing lost, nothing twice, nobody else's file touched."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcluster.services.batch.input import BatchFileError
from kvcluster.services.batch.opening import open_results
from kvcluster.services.batch.output import ResultFile
from kvcluster.services.batch.survey import Survey, survey
from kvcluster.services.completion import Completion, CompletionRequest, Refused
from tests.batch.stand_in import EchoWorkers, line, results, run_job, write_input
from tests.examples import examples


@pytest.fixture
def three(tmp_path: Path) -> Path:
    return write_input(tmp_path / "in.jsonl", line("a", "one"), b"not json", line("ü", "dreißig ✓"), line("d"))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def test_an_output_cut_at_any_byte_is_completed_to_what_an_undisturbed_run_writes(tmp_path: Path, out: Path) -> None:
    given_lines = write_input(tmp_path / "in.jsonl", b"not json", line("ü", "dreißig ✓"))
    run_job(given_lines, out)
    whole, expected = out.read_bytes(), results(out)
    for cut in range(len(whole) + 1):
        out.write_bytes(whole[:cut])
        workers = EchoWorkers()
        progress = run_job(given_lines, out, workers)
        assert results(out) == expected
        assert (progress.done, progress.failed) == (2, 1)
        assert len(workers.submitted) == (0 if cut == len(whole) else 1)


@settings(max_examples=examples(30), deadline=None)
@given(done=st.sets(st.integers(1, 8)), order=st.randoms(use_true_random=False))
def test_whatever_lines_are_done_in_whatever_order_exactly_the_others_are_run(
    tmp_path_factory: pytest.TempPathFactory, done: set[int], order: object
) -> None:
    folder = tmp_path_factory.mktemp("resume")
    given_lines = write_input(folder / "in.jsonl", *(line(f"id {n}", f"prompt {n}") for n in range(1, 9)))
    run_job(given_lines, folder / "whole.jsonl")
    written = (folder / "whole.jsonl").read_bytes().splitlines(keepends=True)
    numbers = [json.loads(raw)["id"] for raw in written]
    (folder / "out.jsonl").write_bytes(
        b"".join(raw for raw, name in zip(written, numbers, strict=True) if int(name.split("_")[-1]) in done)
    )
    workers = EchoWorkers()
    run_job(given_lines, folder / "out.jsonl", workers)
    assert sorted(key for _, key in workers.submitted) == sorted(set(range(1, 9)) - done)
    assert results(folder / "out.jsonl") == results(folder / "whole.jsonl")


def test_a_line_with_an_error_counts_as_done(three: Path, out: Path) -> None:
    run_job(three, out)
    before = out.read_bytes()
    progress = run_job(three, out)
    assert out.read_bytes() == before
    assert (progress.done, progress.failed, progress.generated_tokens) == (4, 1, 0)


def test_retry_failed_asks_failed_lines_again_and_leaves_one_answer_each(tmp_path: Path, out: Path) -> None:
    class Refusing(EchoWorkers):
        def outcome(self, key: int, request: CompletionRequest) -> Completion | Refused:
            return Refused(500, "broken", "no luck") if key == 2 else super().outcome(key, request)

    asked = write_input(tmp_path / "in.jsonl", line("a"), line("b"), line("c"))
    assert run_job(asked, out, Refusing()).failed == 1
    out.chmod(0o640)
    workers = EchoWorkers()
    progress = run_job(asked, out, workers, retry_failed=True)
    assert (progress.done, progress.failed) == (3, 0)
    assert [key for _, key in workers.submitted] == [2]
    assert {number: one["error"] for number, one in results(out).items()} == {1: None, 2: None, 3: None}
    assert out.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


def test_what_a_killed_rewrite_left_beside_the_output_does_no_harm(three: Path, out: Path) -> None:
    run_job(three, out)
    expected = results(out)
    out.with_name("out.jsonl.rewriting").write_text("half a li")
    run_job(three, out, retry_failed=True)
    assert results(out) == expected
    assert not out.with_name("out.jsonl.rewriting").exists()


def test_two_jobs_on_one_output_are_refused_also_after_it_was_rewritten(three: Path, out: Path) -> None:
    run_job(three, out)
    for forget_failed in (False, True):
        with (
            open_results(out, forget_failed=forget_failed),
            pytest.raises(BatchFileError, match="another job is writing this output"),
        ):
            open_results(out)
    open_results(out).close()


def test_an_output_of_another_input_is_refused_and_unchanged(tmp_path: Path, three: Path, out: Path) -> None:
    run_job(three, out)
    before = out.read_bytes()
    others: list[list[dict[str, Any] | bytes]] = [
        [line("a"), b"not json", line("other"), line("d")],
        [line("a"), line("now good"), line("ü"), line("d")],
        [line("a"), b"not json", line("ü")],
        [line("a"), b"not json", line("ü"), b""],
    ]
    for number, lines in enumerate(others):
        other = write_input(tmp_path / f"other{number}.jsonl", *lines)
        with pytest.raises(BatchFileError, match="the output belongs to another input"):
            run_job(other, out)
        assert out.read_bytes() == before


def surveyed(asked: Path, out: Path) -> Survey:
    with open_results(out) as output:
        return survey(asked, output, model="echo")


def test_lines_that_ask_for_something_else_by_now_are_counted_and_their_answers_stay(tmp_path: Path, out: Path) -> None:
    asked = tmp_path / "in.jsonl"
    run_job(write_input(asked, line("a", "one"), b"not json", line("c", "three"), line("d", "four", max_tokens=4)), out)
    before = out.read_bytes()
    same = dict(reversed(line("a", "one", user="somebody", seed=None).items()))
    write_input(asked, same, b"no json", line("c", "thirty"), line("d", "four", max_tokens=5), line("e", "five"))
    found = surveyed(asked, out)
    assert (found.total_lines, found.edited, found.first_edited and found.first_edited.number) == (5, 3, 2)
    run_job(asked, out)
    assert out.read_bytes().startswith(before)
    assert sorted(results(out)) == [1, 2, 3, 4, 5]


def test_of_results_that_do_not_say_what_was_asked_no_line_counts_as_edited(tmp_path: Path, out: Path) -> None:
    asked = write_input(tmp_path / "in.jsonl", line("a", "one"))
    run_job(asked, out)
    [found] = results(out).values()
    found["response"]["request_id"] = "req_1"  # as earlier versions wrote it
    write_input(out, found)
    write_input(asked, line("a", "two"))
    assert surveyed(asked, out) == Survey(1)


def test_an_output_with_texts_of_another_model_is_refused_and_unchanged(three: Path, out: Path) -> None:
    run_job(three, out)
    before = out.read_bytes()
    with pytest.raises(BatchFileError, match="was answered by the model 'echo', not 'other': choose another output"):
        run_job(three, out, model="other")
    assert out.read_bytes() == before


def test_an_output_of_nothing_but_errors_goes_on_with_any_model(tmp_path: Path, out: Path) -> None:
    asked = write_input(tmp_path / "in.jsonl", b"not json", line("b"))
    run_job(asked, out)
    failed = [raw for raw in out.read_bytes().splitlines(keepends=True) if b"invalid_json" in raw]
    out.write_bytes(b"".join(failed))
    progress = run_job(asked, out, model="other")
    assert (progress.done, progress.failed) == (2, 1)


@pytest.mark.parametrize(
    "content",
    [
        b"my diary",
        b"my diary\n",
        b'{"id": 3}\n',
        b'{"id": "batch_req_0", "custom_id": "a", "response": {"status_code": 400},'
        b' "error": {"code": "", "message": ""}}\n',
        b"\n",
        b"\xff\xff",
        b"[" * 100_000 + b"\n",
    ],
)
def test_a_file_that_holds_something_else_is_refused_and_unchanged(three: Path, out: Path, content: bytes) -> None:
    out.write_bytes(content)
    with pytest.raises(BatchFileError, match="line 1 is no result of this command: choose another output file"):
        run_job(three, out)
    assert out.read_bytes() == content


def test_the_input_is_not_taken_as_output(three: Path) -> None:
    before = three.read_bytes()
    with pytest.raises(BatchFileError, match="no result of this command"):
        run_job(three, three)
    assert three.read_bytes() == before


def test_a_result_that_stands_twice_is_refused(three: Path, out: Path) -> None:
    run_job(three, out)
    out.write_bytes(out.read_bytes() * 2)
    with pytest.raises(BatchFileError, match="is a second result of line"):
        run_job(three, out)


def test_an_output_that_cannot_be_written_is_refused_with_the_remedy(tmp_path: Path, three: Path) -> None:
    with pytest.raises(BatchFileError, match=r"No such file or directory\): make its folder first"):
        run_job(three, tmp_path / "none" / "out.jsonl")
    with pytest.raises(BatchFileError, match="must be a plain file"):
        run_job(three, tmp_path)
    with pytest.raises(BatchFileError, match="must be a plain file"):
        run_job(three, Path("/dev/null"))


def test_an_output_behind_a_link_is_written_where_the_link_leads(tmp_path: Path, three: Path, out: Path) -> None:
    run_job(three, out)
    link = tmp_path / "link.jsonl"
    link.symlink_to(out)
    run_job(three, link, retry_failed=True)
    assert link.is_symlink()
    assert len(results(out)) == 4


@contextmanager
def files_of_at_most(size_bytes: int) -> Iterator[None]:
    """A full disk, as the kernel does it: a write beyond the limit is short, and the next one fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_fills_keeps_every_whole_result_and_the_next_run_does_the_rest(three: Path, out: Path) -> None:
    run_job(three, out)
    whole, expected = out.read_bytes(), results(out)
    for room in range(0, len(whole), 97):
        out.write_bytes(b"")
        with files_of_at_most(room), pytest.raises(BatchFileError, match="make room and run the same command again"):
            run_job(three, out)
        kept = out.read_bytes() if out.exists() else b""
        assert kept == whole[: len(kept)]
        assert kept == b"" or kept.endswith(b"\n")
        run_job(three, out)
        assert results(out) == expected


def test_a_disk_that_is_full_leaves_the_old_file_when_it_would_be_rewritten(three: Path, out: Path) -> None:
    run_job(three, out)
    before = out.read_bytes()
    with files_of_at_most(len(before) // 2), pytest.raises(BatchFileError, match=os.strerror(errno.EFBIG)):
        run_job(three, out, retry_failed=True)
    assert out.read_bytes() == before
    assert not out.with_name("out.jsonl.rewriting").exists()
    open_results(out).close()


def test_a_run_that_fails_before_its_first_result_leaves_no_file(tmp_path: Path, out: Path) -> None:
    with pytest.raises(RuntimeError, match="no cluster"), open_results(out):
        raise RuntimeError("no cluster")
    assert not out.exists()


def test_results_are_forced_to_the_disk_once_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, synced = [100.0], []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(now[0]))
    descriptor = os.open(tmp_path / "out", os.O_RDWR | os.O_CREAT)
    file = ResultFile(tmp_path / "out", descriptor, {}, clock=lambda: now[0])
    for now[0] in (100.0, 100.5, 101.0, 101.5, 102.1):
        file.sync_if_due()
    file.close()
    assert synced == [101.0, 102.1, 102.1]


def test_a_disk_that_fails_when_it_is_to_keep_results_is_refused_and_the_file_is_closed(
    three: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", fail)
        with pytest.raises(BatchFileError, match="Input/output error"):
            run_job(three, out)
    open_results(out).close()


@pytest.mark.parametrize("left", ["nothing", "another file"])
def test_an_output_that_is_replaced_before_it_is_locked_is_opened_again(
    out: Path, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    out.touch()
    lock = fcntl.flock

    def too_late(descriptor: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        out.rename(out.with_name("old"))
        if left == "another file":
            out.touch()
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", too_late)
    with open_results(out) as file:
        file.append(b"x\n")
    assert out.read_bytes() == b"x\n"
    assert out.with_name("old").read_bytes() == b""
