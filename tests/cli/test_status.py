"""`kvcluster status` and `stop`: what is printed and how it ends, where a stand-in answers in the actors' place."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from types import ModuleType

import pytest
from typer.testing import CliRunner, Result

from kvcluster.cli.main import app
from kvcluster.cli.standing_rows import MOST_DEATHS
from kvcluster.config import ConfigError
from kvcluster.services.chronicle import Death, Who
from kvcluster.services.standing import (
    ClusterStanding,
    OwnerStanding,
    Remaining,
    SessionStanding,
    WorkerStanding,
    WorkerState,
    WorkerWord,
)

NODE = "0123456789abcdef"
KIB = 2**10
BYTES = {"free": 40 * KIB, "request": 8 * KIB, "prefix": 4 * KIB, "retained": 2 * KIB, "quarantine": 6 * KIB}
DEVICE = OwnerStanding(
    kind="device",
    name="host:0",
    node_id=NODE,
    pid=11,
    number=2,
    epoch=77,
    capacity_bytes=60 * KIB,
    bytes_by_kind=BYTES,
    sessions=(SessionStanding(21, "live", 0.25),),
    open_requests=3,
    running_requests=2,
)
WORKER = WorkerStanding("job/0", NODE, 21, WorkerWord(21, "host:0", WorkerState.SERVING, running=2, waiting=1))
SILENT = OwnerStanding("host-kv", "pages", NODE, 12, 1, complaint="it does not answer")

Call = Callable[..., Result]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Call:
    """A command, where the cluster answers `found`, or raises it."""

    def invoke(found: object, *words: str) -> Result:
        def answer(address: str | None = None, **options: object) -> object:
            if isinstance(found, Exception):
                raise found
            return found

        for name in ("actors.standings", "actors.ending"):
            module = ModuleType(name)
            module.__dict__.update(dict.fromkeys(("cluster_standing", "stop_cluster", "force_cluster"), answer))
            monkeypatch.setitem(sys.modules, name, module)
        return CliRunner().invoke(app, list(words))

    return invoke


def test_each_has_its_row_with_memory_by_kind_and_where_all_answer_the_code_is_0(call: Call) -> None:
    result = call(ClusterStanding((DEVICE,), (WORKER,), ()), "status")
    assert (result.exit_code, result.stderr) == (0, "")
    owners, sessions, workers = result.stdout.split("\n\n")
    sizes = "60.0 KiB 12.0 KiB 2.0 KiB 40.0 KiB 6.0 KiB 0 B"
    assert " ".join(owners.splitlines()[1].split()) == f"host:0 01234567 11 2 77 2 of 3 {sizes}"
    assert sessions.splitlines()[1].split() == ["host:0", "01234567", "21", "live", "0.2", "s"]
    assert workers.splitlines()[1].split() == ["job/0", "01234567", "21", "host:0", "serving", "2", "1"]


def test_one_that_does_not_answer_is_shown_with_its_process_and_the_code_is_1(call: Call) -> None:
    gone = WorkerStanding("job/1", NODE, 0, None, "it ended, and is being started again")
    found = ClusterStanding((DEVICE, SILENT), (gone,), ())
    result = call(found, "status")
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "kvcluster: pages on node 01234567 (process 12): it does not answer",
        "kvcluster: job/1 on node 01234567 (process unknown): it ended, and is being started again",
    ]
    [shown] = [line for line in result.stdout.splitlines() if line.startswith("pages")]
    assert shown.split()[2:5] == ["12", "1", "?"]
    told = json.loads(call(found, "status", "--json").stdout)
    assert (told["owners"][1]["pid"], len(told["complaints"])) == (12, 2)


def test_the_last_deaths_are_shown_with_their_causes_the_newest_first(call: Call) -> None:
    now_s = time.time()
    deaths = tuple(
        Death(Who("request", f"job/{number}", NODE, number), now_s - 60, f"cause {number}", "process 1")
        for number in range(MOST_DEATHS + 2)
    )
    result = call(ClusterStanding((), (), deaths), "status")
    shown = [line for line in result.stdout.splitlines() if line.startswith("request job/")]
    assert len(shown) == MOST_DEATHS
    assert shown[0].endswith(f"cause {MOST_DEATHS + 1}")
    assert result.stdout.startswith("nobody of kvcluster is on this cluster\n")
    assert len(json.loads(call(ClusterStanding((), (), deaths), "status", "--json").stdout)["deaths"]) == len(deaths)


def test_what_did_not_end_is_named_with_its_process_and_the_code_is_1(call: Call) -> None:
    result = call((Remaining("host:0", NODE, 11, "process 9 still has a session with it"),), "stop")
    assert (result.exit_code, result.stdout) == (1, "")
    sentence = "host:0 on node 01234567 (process 11) did not end: process 9 still has a session with it"
    assert result.stderr == f"kvcluster: {sentence}\n"


@pytest.mark.parametrize("words", [("stop",), ("stop", "--force")])
def test_where_all_ended_the_code_is_0(call: Call, words: tuple[str, ...]) -> None:
    result = call((), *words)
    assert (result.exit_code, result.stderr) == (0, "nothing of kvcluster runs on this cluster any more\n")


@pytest.mark.parametrize("command", ["status", "stop"])
def test_no_cluster_is_one_sentence_and_the_code_is_2(call: Call, command: str) -> None:
    result = call(ConfigError("no Ray cluster answers there"), command)
    assert (result.exit_code, result.stderr) == (2, "kvcluster: no Ray cluster answers there\n")
