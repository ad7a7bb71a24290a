"""`kvcluster run-batch`: options, exit codes, sentences, and what is printed. The cluster is a stand-in."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner, Result

from kvcluster.cli.main import app
from kvcluster.cli.report import write_device_table
from kvcluster.config import ConfigError
from kvcluster.errors import DeviceUnreachable, InvariantBroken
from kvcluster.services.statistics import DeviceReport
from kvcluster.units import MIB
from tests.batch.stand_in import line, results, write_input
from tests.cli.stand_in_cluster import EchoCluster, stand_in_module

Run = Callable[..., Result]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[EchoCluster]:
    """Clusters that are open; also those of a module that takes the place of the real one."""
    clusters: list[EchoCluster] = []
    monkeypatch.setitem(sys.modules, "actors.cluster", stand_in_module(clusters))
    return clusters


@pytest.fixture
def run(tmp_path: Path, opened: list[EchoCluster]) -> Run:
    """Runs on in.jsonl and out.jsonl of the test's folder, and nothing is left open."""

    def call(*options: str) -> Result:
        files = ["-i", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out.jsonl"), "--model", "m"]
        result = CliRunner().invoke(app, ["run-batch", *files, *options])
        assert opened == []
        return result

    return call


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return write_input(tmp_path / "in.jsonl", line("a", "one"), line("b", "two"))


def the_sentence(result: Result) -> str:
    """The one sentence of a command that ended with exit code 2 and printed nothing but what it was going to do."""
    assert result.exit_code == 2
    assert result.stdout == ""
    *plan, sentence = result.stderr.splitlines()
    assert len(plan) <= 1
    assert all(line.startswith("2 of 2 lines to answer; making ") for line in plan)
    assert sentence.startswith("kvcluster: ")
    return sentence


def test_all_answered_is_exit_code_0_and_a_table_of_devices(run: Run, good: Path) -> None:
    result = run("--devices", "host:0,1")
    assert result.exit_code == 0
    heading, first, second = result.stdout.splitlines()
    assert heading.split("  ")[0] == "device"
    for words in ("requests", "tokens/s", "peak reserved", "peak committed", "peak live", "messages/token"):
        assert words in heading
    peaks = ["512.0", "MiB", "12.0", "MiB", "11.0", "MiB"]
    assert first.split() == ["host:0", "2", "24.0", *peaks, "100/400", "0.052", "1234"]
    assert second.startswith("host:1 ")
    assert len({len(row) for row in (heading, first, second)}) == 1
    assert result.stderr.splitlines()[-1] == "2 of 2 lines, 0 failed, 6 tokens"


def test_a_line_that_was_edited_after_it_was_answered_is_named_with_the_remedy(
    run: Run, good: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    run()
    assert run().stderr == "all 2 lines have their result already\n"
    write_input(good, line("a", "one"), line("b", "twenty"))
    again = run()
    assert (again.exit_code, again.stderr.splitlines()[0]) == (
        0,
        "kvcluster: line 2 (custom_id 'b') was edited after it was answered, and keeps that answer: to have it "
        f"answered again remove its result from {out}, or choose another output file",
    )
    write_input(good, b"[]", line("b", "twenty"))
    out.write_text("".join(text.replace('"a"', "null") for text in out.read_text().splitlines(keepends=True)))
    assert run().stderr.startswith(
        "kvcluster: 2 lines were edited after they were answered, the first of them line 1, and keep those answers: to "
        "have them answered again remove their results from "
    )


def test_tokens_that_were_computed_again_have_a_column_where_there_were_any(capsys: pytest.CaptureFixture[str]) -> None:
    report = DeviceReport("host:0", 2, 96, 4.0, MIB, MIB, MIB, 400, 100, 5, 1_234)
    write_device_table([report, replace(report, device="host:1", recomputed_tokens=7)])
    heading, first, second = capsys.readouterr().out.splitlines()
    assert heading.split()[-1] == "recomputed"
    assert (first.split()[-1], second.split()[-1]) == ("0", "7")


def test_a_job_with_host_pages_has_a_table_of_them_below(run: Run, good: Path) -> None:
    *_, heading, row = run("--fallback", "host").stdout.splitlines()
    assert heading.startswith("host pages ")
    assert row.split() == ["pages-2x1x16-float32-16", "512.0", "MiB", "3.0", "MiB", "4", "1000", "250", "7"]


def test_some_failed_is_exit_code_1_also_when_there_is_nothing_left_to_do(run: Run, tmp_path: Path) -> None:
    write_input(tmp_path / "in.jsonl", line("a"), line("b", max_tokens=0))
    assert run().exit_code == 1
    assert run().exit_code == 1
    assert len(results(tmp_path / "out.jsonl")) == 2


def test_failed_lines_are_counted_by_kind_with_the_first_of_each_in_the_inputs_order(run: Run, tmp_path: Path) -> None:
    bad = [line("b", max_tokens=0), line("c", n=0), b"not json"]
    out = write_input(tmp_path / "in.jsonl", line("a"), *bad).with_name("out.jsonl")
    assert run().exit_code == 1
    out.write_bytes(b"".join(reversed(out.read_bytes().splitlines(keepends=True))))
    again = run()
    assert again.exit_code == 1
    assert again.stderr.splitlines() == [
        "all 4 lines have their result already",
        "kvcluster: 2 failed with invalid_value, the first of them: "
        "line 2: body.max_tokens is 0, and must be a whole number of at least 1",
        "kvcluster: 1 failed with invalid_json, the first of them: "
        "line 4: the line is not JSON at character 1: Expecting value",
        f"kvcluster: each error stands in {out}; --retry-failed asks these lines again",
    ]


def test_another_model_does_not_go_on_with_an_output(run: Run, good: Path) -> None:
    assert run().exit_code == 0
    sentence = the_sentence(run("--model", "other"))
    assert "was answered by the model 'm', not 'other': choose another output file, or that model" in sentence


def test_without_anything_left_to_do_no_cluster_is_started(
    run: Run, good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run().exit_code == 0
    monkeypatch.setitem(sys.modules, "actors.cluster", ModuleType("empty"))
    again = run()
    assert (again.exit_code, again.stdout) == (0, "")
    assert again.stderr == "all 2 lines have their result already\n"


def test_options_win_over_the_config_file(
    run: Run, good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clusters: list[EchoCluster] = []
    seen: list[EchoCluster] = []

    class Noted(EchoCluster):
        def submit(self, worker: int, items: object) -> None:
            seen.append(self)
            super().submit(worker, items)  # type: ignore[arg-type]

    monkeypatch.setitem(sys.modules, "actors.cluster", stand_in_module(clusters, Noted))
    (tmp_path / "c.yaml").write_text("applications: [{args: {model: x, layout: seq-major, max_num_seqs: 3}}]")
    assert run("--config", str(tmp_path / "c.yaml"), "--max-num-seqs", "5", "--dtype", "float32").exit_code == 0
    settings = seen[0].settings
    assert (settings.model, settings.layout, settings.max_num_seqs, settings.dtype) == ("m", "seq-major", 5, "float32")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--devices", "tpu:0"], "devices is 'tpu:0', and must be host"),
        (["--device-memory", "much"], "device_memory is 'much', and must be a size such as 512MiB"),
        (["--granule", "3KiB"], "granule is '3KiB', and must be a power of two"),
        (["--dtype", "int4"], "dtype is 'int4', and must be"),
        (["--layout", "heap"], "layout is 'heap', and must be"),
        (["--threads", "0"], "threads is 0, and must be"),
        (["--max-num-seqs", "0"], "max_num_seqs is 0, and must be"),
        (["--model", ""], "model is '', and must"),
        (["--config", "/none.yaml"], "/none.yaml: the file cannot be read: No such file or directory"),
        (["-i", "/none.jsonl"], "/none.jsonl: the input cannot be read: No such file or directory"),
        (["-o", "/none/out.jsonl"], "/none/out.jsonl: the output cannot be written (No such file or directory)"),
        (["-o", "/dev/full"], "/dev/full: the output must be a plain file"),
        (["-o", "/tmp/" + "x" * 300], "the output cannot be written (File name too long)"),
        (["-i", "/tmp/" + "x" * 300], "the input cannot be read: File name too long"),
        (["--config", "/tmp/" + "x" * 300], "the file cannot be read: File name too long"),
        (["-o", "loop"], "the output cannot be written (Too many levels of symbolic links)"),
    ],
)
def test_wrong_use_is_one_sentence_and_exit_code_2(
    run: Run, good: Path, options: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(good.parent)
    Path("loop").symlink_to("loop")
    assert sentence in the_sentence(run(*options))
    assert not (good.parent / "out.jsonl").exists()


def test_an_output_that_another_job_writes_is_refused(run: Run, good: Path) -> None:
    from kvcluster.services.batch.opening import open_results

    with open_results(good.parent / "out.jsonl"):
        assert "another job is writing this output" in the_sentence(run())


@pytest.mark.parametrize(
    "error", [DeviceUnreachable(device="host:0", reason="its name\nis taken"), ConfigError("device_memory is small")]
)
def test_a_cluster_that_cannot_be_opened_is_one_sentence_and_leaves_no_file(
    run: Run, good: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(settings: object, *, address: str | None = None) -> None:
        raise error

    module = ModuleType("actors.cluster")
    module.__dict__["open_cluster"] = refuse
    monkeypatch.setitem(sys.modules, "actors.cluster", module)
    assert the_sentence(run()) == f"kvcluster: {' '.join(str(error).split())}"
    assert not (good.parent / "out.jsonl").exists()


@pytest.mark.parametrize(
    "bug", [InvariantBroken(sentence="the ledger does not sum"), ValueError("bug"), MemoryError(), SystemError()]
)
@pytest.mark.parametrize("where", ["submit", "wait", "device_reports"])
def test_a_bug_is_not_made_into_a_sentence_and_closes_the_cluster_all_the_same(
    run: Run, good: Path, monkeypatch: pytest.MonkeyPatch, opened: list[EchoCluster], bug: Exception, where: str
) -> None:
    def broken(self: EchoCluster, *_: object) -> None:
        assert opened == [self]
        raise bug

    kind = type("Broken", (EchoCluster,), {where: broken})
    monkeypatch.setitem(sys.modules, "actors.cluster", stand_in_module(opened, kind))
    result = run()  # which holds that no cluster is open
    assert result.exception is bug
    assert result.exit_code == 1


def test_print_texts_prints_prompts_and_texts_in_the_inputs_order(run: Run, tmp_path: Path) -> None:
    write_input(tmp_path / "in.jsonl", line("a", "one \x1b[31m"), line("b", max_tokens=0), line("c", [1, 2]))
    result = run("--print-texts")
    assert result.stdout.splitlines()[:9] == [
        "--- a",
        "one [31m<one [31m>",
        "",
        "--- b",
        "(no answer: line 2: body.max_tokens is 0, and must be a whole number of at least 1)",
        "",
        "--- c",
        "<(1, 2)>",
        "",
    ]


def test_model_prints_the_folder_or_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    found = CliRunner().invoke(app, ["model", str(tmp_path)])
    assert (found.exit_code, found.stdout.strip()) == (0, str(tmp_path))
    missing = CliRunner().invoke(app, ["model", str(tmp_path / "none")])
    assert "none cannot be opened: " in the_sentence(missing)


def test_a_model_cache_that_cannot_be_written_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nope")
    sentence = the_sentence(CliRunner().invoke(app, ["model", "gemma3-270m"]))
    assert "/proc/nope/kvcluster/models, which cannot be written" in sentence
    assert "XDG_CACHE_HOME" in sentence
