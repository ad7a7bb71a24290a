"""`kvcluster top`: what a frame shows and how it ends, where a stand-in answers in the actors' place."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from types import ModuleType

import pytest
from typer.testing import CliRunner, Result

from kvcluster.cli.main import app
from kvcluster.cli.top_frame import BAR_CELLS, bar
from kvcluster.config import ConfigError
from kvcluster.services.answered import Answered
from kvcluster.services.chronicle import Death, Who
from kvcluster.services.standing import (
    ClusterStanding,
    OwnerStanding,
    SessionStanding,
    WorkerStanding,
    WorkerState,
    WorkerWord,
    picture,
)
from tests.attach.attach_world import ROOT

NODE = "0123456789abcdef"
KIB = 2**10
DEVICE = OwnerStanding(
    kind="device",
    name="host:0",
    node_id=NODE,
    pid=11,
    number=1,
    epoch=77,
    capacity_bytes=40 * KIB,
    bytes_by_kind={"request": 12 * KIB, "prefix": 8 * KIB, "retained": 10 * KIB, "granted": 2 * KIB, "free": 8 * KIB},
    sessions=(SessionStanding(21, "live", 0.1), SessionStanding(22, "orphaned", 40.0)),
    open_requests=3,
    running_requests=2,
    refusals={"OutOfBudget": 1_200},
)
WORD = WorkerWord(21, "host:0", WorkerState.SERVING, running=2, waiting=1, generated_tokens=10, model="tiny")
WORKER = WorkerStanding("job/0", NODE, 21, WORD)
DEATH = Death(Who("request", "job/0", NODE, 20), time.time() - 60, "it was killed by SIGKILL", "process 1")
FIRST = ClusterStanding((DEVICE,), (WORKER,), (DEATH,))
AFTER = replace(WORD, generated_tokens=1_000_000, answered=Answered(refused={"server_busy": 7}))
SECOND = replace(FIRST, workers=(replace(WORKER, word=AFTER),))

Call = Callable[..., Result]


def standings_module(looks: list[ClusterStanding | Exception]) -> ModuleType:
    """In the place of `actors.standings`: a cluster that is seen so, one look after the other; the last one stays.

    As with Ray, standard output is not the command's as long as it is connected.
    """

    @contextmanager
    def cluster_glances(address: str | None = None) -> Iterator[Callable[[], ClusterStanding]]:
        def glance() -> ClusterStanding:
            seen = looks.pop(0) if len(looks) > 1 else looks[0]
            assert isinstance(seen, ClusterStanding)
            return seen

        if isinstance(looks[0], Exception):
            raise looks[0]
        with redirect_stdout(io.StringIO()):
            yield glance

    module = ModuleType("actors.standings")
    module.__dict__["cluster_glances"] = cluster_glances
    return module


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Call:
    """The command, where two looks see so; or the first is an error."""

    def invoke(first: ClusterStanding | Exception, second: ClusterStanding, *words: str) -> Result:
        monkeypatch.setitem(sys.modules, "actors.standings", standings_module([first, second]))
        return CliRunner().invoke(app, ["top", "--interval", "0.1", *words])

    return invoke


def test_a_frame_has_memory_workers_refusals_and_deaths(call: Call) -> None:
    result = call(FIRST, SECOND, "--once")
    assert (result.exit_code, result.stderr) == (0, "")
    shown = " ".join(result.stdout.split())
    assert "host:0 01234567 OutOfBudget 1,200 0.0" in shown
    assert "job/0 01234567 21 host:0 tiny serving 2 1" in shown
    assert "job/0 01234567 server_busy 7" in shown
    assert shown.endswith(" s it was killed by SIGKILL")


def test_memory_is_a_bar_with_its_clients_and_bytes(call: Call) -> None:
    shown = " ".join(call(FIRST, FIRST, "--once").stdout.split())
    assert f"host:0 01234567 11 77 2 (1 orphaned) 2 of 3 {bar(DEVICE)} 40.0 KiB 20.0 KiB 10.0 KiB 8.0 KiB" in shown
    assert bar(DEVICE) == "##########=====-...."


def test_tokens_a_second_are_of_the_time_between_the_two_looks(call: Call) -> None:
    shown = call(FIRST, SECOND, "--once").stdout
    [pace] = [line.split()[-1] for line in shown.splitlines() if line.startswith("job/0") and "serving" in line]
    assert 0 < float(pace) <= 999_990 / 0.1


@pytest.mark.parametrize(
    ("held", "drawn"),
    [
        ({}, "." * BAR_CELLS),
        ({"request": 1}, "#" + "." * (BAR_CELLS - 1)),
        ({"request": 40 * KIB}, "#" * BAR_CELLS),
        ({"quarantine": 1, "foreign": 1, "request": 40 * KIB - 2}, "!" + "#" * (BAR_CELLS - 1)),
    ],
)
def test_a_bar_has_its_length_and_a_cell_for_whatever_is_there(held: dict[str, int], drawn: str) -> None:
    assert bar(replace(DEVICE, bytes_by_kind=held)) == drawn


def test_one_that_hangs_is_shown_without_an_answer_and_the_code_is_1(call: Call) -> None:
    silent = OwnerStanding("device", "host:1", NODE, 12, 1, complaint="it does not answer")
    found = replace(FIRST, owners=(DEVICE, silent))
    result = call(found, found, "--once")
    assert result.exit_code == 1
    assert "host:1 01234567 12 ? no answer" in " ".join(result.stdout.split())
    assert result.stderr == "kvcluster: host:1 on node 01234567 (process 12): it does not answer\n"


def test_json_is_the_picture_of_the_second_look_with_what_rose_since_the_first(call: Call) -> None:
    printed = json.loads(call(FIRST, FIRST, "--json").stdout)
    [owner], [worker] = printed["owners"], printed["workers"]
    assert (owner.pop("refusals_per_s"), worker.pop("tokens_per_s")) == ({"OutOfBudget": 0.0}, 0.0)
    plain = picture(FIRST)
    del plain["owners"][0]["refusals_per_s"], plain["workers"][0]["tokens_per_s"]
    assert printed == plain


def test_without_a_terminal_one_frame_is_printed(call: Call) -> None:
    assert call(FIRST, SECOND).exit_code == 0


def test_nobody_there_is_a_sentence_and_no_cluster_exit_code_2(call: Call) -> None:
    empty = ClusterStanding((), (), ())
    assert call(empty, empty).stdout == "nobody of kvcluster is on this cluster\n"
    result = call(ConfigError("no Ray cluster answers there"), empty)
    assert (result.exit_code, result.stderr) == (2, "kvcluster: no Ray cluster answers there\n")


WATCH = """
import sys
from tests.cli.test_top import FIRST, standings_module
sys.modules["actors.standings"] = standings_module([FIRST])
sys.argv = ["kvcluster", "top", "--interval", "0.1"]
from kvcluster.cli.entry import main
main()
"""


def test_on_a_terminal_it_goes_on_until_ctrl_c_which_leaves_the_screen_as_it_was() -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", WATCH], stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT) as it:
        os.close(theirs)
        seen = b""
        while seen.count(b"\x1b[H") < 3:  # frames, each drawn from the screen's corner
            seen += os.read(ours, 4096)
        it.send_signal(signal.SIGINT)
        while chunk := _read(ours):
            seen += chunk
    os.close(ours)
    assert it.returncode == 0
    assert b"host:0" in seen
    assert seen.index(b"\x1b[?1049h") < seen.index(b"\x1b[?1049l")
    assert b"Traceback" not in seen


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # the other end has closed
        return b""
