"""`kvcluster run-batch` as a process on a real Ray of its own, stopped by Ctrl-C, refused; what it leaves.

One that joins a running cluster is in `test_several_nodes`.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import psutil
import pytest
import ray

from actors import cluster
from kvcluster.config import ConfigError
from kvcluster.services.abandoned_files import abandoned_files
from kvcluster.services.batch.opening import open_results
from tests.actors.answers import LENGTHS, PROMPTS
from tests.actors.world import TIMEOUT_S, World, eventually
from tests.batch.stand_in import line, results, write_input

MARK = "KVCLUSTER_TEST_COMMAND"
OURS = re.compile(r"kvcluster: .*|\d+ of \d+ lines.*")


class Command:
    """One run of the command, in a session of its own. Every process that it leads to carries its mark."""

    def __init__(self, folder: Path, device: str, options: dict[str, str]) -> None:
        self.mark = uuid4().hex
        self.device = device
        self.out = folder / "out.jsonl"
        self.run_folder = folder / "run"
        self.run_folder.mkdir(mode=0o700, exist_ok=True)
        self.runs: list[subprocess.Popen[str]] = []
        self._folder = folder
        self._options = {"--devices": device, "--granule": "4KiB", "--dtype": "float32", **options}

    def start(self, **environment: str) -> subprocess.Popen[str]:
        words = [word for option in self._options.items() for word in option]
        files = ["-i", str(self._folder / "in.jsonl"), "-o", str(self.out)]
        run = subprocess.Popen(
            [str(Path(sys.executable).with_name("kvcluster")), "run-batch", *files, *words],
            env={**os.environ, MARK: self.mark, "XDG_RUNTIME_DIR": str(self.run_folder), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.runs.append(run)
        return run

    def left(self) -> list[str]:
        """Processes and sockets of this run that are still there."""
        found = [str(process) for process in psutil.process_iter() if mark_of(process) == self.mark]
        sockets = Path("/proc/net/unix").read_text().splitlines()
        return found + [socket for socket in sockets if f"kvcluster-{self.device}-" in socket]


def mark_of(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(MARK) if process.status() != psutil.STATUS_ZOMBIE else None
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


Make = Callable[..., Command]


@pytest.fixture
def command(tmp_path: Path, folder: Path, world: World) -> Iterator[Make]:
    made: list[Command] = []

    def make(*, rounds: int = 1, tokens: int = 1, **options: str) -> Command:
        asked = [
            line(f"{round_}/{place}", list(prompt), max_tokens=length * tokens, temperature=0, ignore_eos=True)
            for round_ in range(rounds)
            for place, (prompt, length) in enumerate(zip(PROMPTS, LENGTHS, strict=True))
        ]
        write_input(tmp_path / "in.jsonl", *asked)
        [device] = world.settings().device_names
        values = {"--model": str(folder), "--device-memory": "8MiB"}
        made.append(
            Command(tmp_path, device, {**values, **{f"--{k.replace('_', '-')}": v for k, v in options.items()}})
        )
        return made[-1]

    yield make
    for command in made:
        for process in psutil.process_iter():
            if mark_of(process) == command.mark:
                process.kill()
        for run in command.runs:
            with run:
                run.kill()


def finished(run: subprocess.Popen[str]) -> tuple[int, str, list[str]]:
    """Exit code, standard output, and the lines of standard error, all of which are ours."""
    with run:
        shown, errors = run.communicate(timeout=TIMEOUT_S)
    lines = errors.splitlines()
    assert [line for line in lines if not OURS.fullmatch(line)] == []
    return run.returncode, shown, lines


@pytest.mark.parametrize("send", [os.kill, os.killpg], ids=["the process", "the foreground process group"])
def test_ctrl_c_keeps_results_and_leaves_nothing(
    command: Make, wanted: list[str], send: Callable[[int, int], None]
) -> None:
    job = command(rounds=2000, max_num_seqs="4")
    run = job.start()
    assert run.stderr is not None
    for text in run.stderr:
        assert OURS.fullmatch(text.strip()), text
        if "failed" in text:
            break
    there = job.left()
    assert any(f"kvcluster-{job.device}-" in one for one in there)
    assert sum("ray::" in one for one in there) >= 2  # so that what is looked for can be found
    send(run.pid, signal.SIGINT)
    code, shown, errors = finished(run)
    eventually(lambda: not job.left(), "no process and no socket is left")
    assert (code, shown) == (130, "")
    assert errors[-1].startswith("kvcluster: stopped; finished results are kept")
    files = sorted(job.run_folder.glob("kvcluster/*"))
    assert [file.path for file in abandoned_files(job.run_folder / "kvcluster") if not file.clients] == files
    kept = results(job.out)
    assert 0 < len(kept) < 12_000
    for number, result in kept.items():
        assert result["response"]["body"]["choices"][0]["text"] == wanted[(number - 1) % len(wanted)]
    with open_results(job.out) as output:
        assert sorted(output.earlier) == sorted(kept)


@pytest.mark.parametrize(
    ("options", "environment", "sentence"),
    [
        ({}, {"RAY_ADDRESS": "127.0.0.1:1"}, "no Ray cluster answers at '127.0.0.1:1': start it, or unset RAY_ADDRESS"),
        ({"ray_address": "nonsense"}, {"RAY_ADDRESS": "127.0.0.1:1"}, "no Ray cluster answers at 'nonsense'"),
        ({"model": "/no/such/folder"}, {}, "model /no/such/folder cannot be opened"),
        ({"device_memory": "4KiB", "layout": "seq-major"}, {}, "device_memory is 4KiB, and one token in the seq-major"),
    ],
    ids=["nobody listens", "no address, which wins", "no model", "memory too small for the model"],
)
def test_a_start_that_fails_is_one_sentence_and_exit_code_2_with_nothing_left(
    command: Make, options: dict[str, str], environment: dict[str, str], sentence: str
) -> None:
    job = command(**options)
    code, shown, errors = finished(job.start(**environment))
    assert (code, shown) == (2, "")
    assert errors[-1].startswith(f"kvcluster: {sentence}")
    assert len(errors) == 2
    assert not job.out.exists()
    eventually(lambda: not job.left(), "no process and no socket is left")


def test_a_port_where_somebody_listens_in_silence_is_given_up_before_ray_itself_tries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ray would try for 41 s, deaf to signals."""
    monkeypatch.setattr(cluster, "ANSWER_TIMEOUT_S", 0.1)
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("Ray tries"))
    with socket.create_server(("0.0.0.0", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"no Ray cluster answers at '{address}': start it"):
            cluster._join(address)
