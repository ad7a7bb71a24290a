"""The command as a process: how fast it starts, how it stops, and what it shows on a terminal."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvcluster.cli.progress import PlainProgress, sentence
from kvcluster.services.batch.job import Progress
from tests.batch.stand_in import line, results, write_input

ROOT = Path(__file__).parents[2]
STAND_IN = [sys.executable, "-m", "tests.cli.stand_in_cluster", "run-batch", "--model", "m"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["run-batch", "--help"],
        ["run-batch", "-i", "/none", "-o", "o"],
        ["plan", "--help"],
        ["plan", "--model", "m", "--context", "1", "--prefix", "2"],
        ["doctor", "--help"],
        ["doctor", "--json"],
        ["audit", "--help"],
    ],
)
def test_the_command_answers_without_importing_ray_or_torch(arguments: list[str]) -> None:
    program = (
        "import sys, kvcluster.cli.entry as cli\n"
        "try:\n    cli.main()\n"
        "except SystemExit:\n    pass\n"
        "print(sorted({'ray', 'torch', 'transformers', 'rich', 'numpy'} & sys.modules.keys()))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_job_and_a_second_one_does_not_disturb_the_closing(tmp_path: Path, first: int) -> None:
    given = write_input(tmp_path / "in.jsonl", line("a"), line("b"))
    out = tmp_path / "out.jsonl"
    environment = {**os.environ, "KVCLUSTER_TEST_HANGS": "1"}
    with subprocess.Popen(
        [*STAND_IN, "-i", str(given), "-o", str(out)],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "hanging\n"
        job.send_signal(first)
        assert job.stdout.readline() == "closing\n"
        job.send_signal(signal.SIGINT)
        job.send_signal(signal.SIGTERM)
        rest, errors = job.communicate("go on\n", timeout=20)
    assert rest == "closed\n"
    assert job.returncode == 130
    assert errors.splitlines()[-1].startswith("kvcluster: stopped; finished results are kept")
    assert "Traceback" not in errors
    assert len(results(out)) == 1


def test_a_signal_keeps_what_a_worker_had_finished_and_not_yet_told(tmp_path: Path) -> None:
    given = write_input(tmp_path / "in.jsonl", line("a"), line("b"))
    out = tmp_path / "out.jsonl"
    with subprocess.Popen(
        [*STAND_IN, "-i", str(given), "-o", str(out)],
        cwd=ROOT,
        env={**os.environ, "KVCLUSTER_TEST_HANGS": "finished"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "hanging\n"
        job.terminate()
        _, errors = job.communicate("go on\n", timeout=20)
    assert (job.returncode, "Traceback" in errors) == (130, False)
    assert sorted(results(out)) == [1, 2]


def test_a_terminal_gets_a_bar_and_a_table_with_lines(tmp_path: Path) -> None:
    given = write_input(tmp_path / "in.jsonl", *(line(name) for name in "abc"))
    shown = on_a_terminal([*STAND_IN, "-i", str(given), "-o", str(tmp_path / "out.jsonl")])
    assert "3/3" in shown
    assert "0 failed, 9 tokens" in shown
    assert "┏━" in shown
    assert "driver calls" in shown


def on_a_terminal(command: list[str]) -> str:
    """What the command writes to a terminal of 160 columns."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "160", "TERM": "xterm", "LANG": "C.UTF-8", "PYTHONIOENCODING": "utf-8"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdin=theirs, stdout=theirs, stderr=theirs) as job:
        os.close(theirs)
        shown = b""
        while part := read_part(ours):
            shown += part
    os.close(ours)
    assert job.returncode == 0, shown
    return shown.decode()


def read_part(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # the last process on the other side has closed it
        return b""


def test_plain_progress_is_the_first_line_the_last_and_one_every_five_seconds_between() -> None:
    now = [0.0]
    written: list[str] = []
    tell = PlainProgress(written.append, clock=lambda: now[0])
    for done, now[0] in ((1, 10.0), (2, 11.0), (3, 14.9), (4, 15.0), (5, 16.0), (6, 16.1)):
        tell(Progress(total=6, done=done, failed=1, generated_tokens=done * 10))
    assert written == [
        "1 of 6 lines, 1 failed, 10 tokens",
        "4 of 6 lines, 1 failed, 40 tokens",
        "6 of 6 lines, 1 failed, 60 tokens",
    ]


def test_workers_that_died_are_told_beside_the_lines() -> None:
    told = [sentence(Progress(6, 3, 0, 30, lost_workers=lost)) for lost in (0, 1, 2)]
    assert [each.removeprefix("3 of 6 lines, 0 failed, 30 tokens") for each in told] == [
        "",
        ", 1 worker died and its lines go on",
        ", 2 workers died and their lines go on",
    ]


def test_an_environment_that_arms_nothing_known_is_one_sentence() -> None:
    environment = {**os.environ, "KVCLUSTER_FAILPOINTS": "nonsense=kill"}
    command = [sys.executable, "-c", "from kvcluster.cli.entry import main; main()", "failpoints"]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("kvcluster: KVCLUSTER_FAILPOINTS: 'nonsense=kill' names no failpoint")
    assert ran.stderr.count("\n") == 1
