"""Jobs on several nodes of one machine: a node that is lost costs time only, and a cluster can be stopped under a job.

The cluster is the module's own, beside that of the other tests, and is used by commands alone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ray.cluster_utils import Cluster

from actors.causes import NODE_DIED
from actors.request import WORKER
from tests.actors.answers import LENGTHS, PROMPTS
from tests.actors.test_command import OURS
from tests.actors.world import TIMEOUT_S, eventually, has_ended
from tests.batch.stand_in import line, results, write_input

KVCLUSTER = str(Path(sys.executable).with_name("kvcluster"))
NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_log_monitor": False}
QUICK = {  # a node's death is noticed within a second
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "200",
    "RAY_health_check_timeout_ms": "500",
    "RAY_health_check_failure_threshold": "2",
    "RAY_timeout_ms_task_wait_for_death_info": "50",
}


@pytest.fixture(scope="module")
def nodes(node_id: str) -> Iterator[Cluster]:
    """A head, on which the commands run, with one CPU; tests add nodes to it."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in QUICK.items():
            patch.setenv(name, value)
        cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
        yield cluster
        cluster.shutdown()


@dataclass
class Job:
    """One command line of `run-batch`, with its files."""

    folder: Path
    address: str
    model: Path
    options: list[str]
    runs: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def out(self) -> Path:
        return self.folder / "out.jsonl"

    def start(self) -> subprocess.Popen[str]:
        files = ["-i", str(self.folder / "in.jsonl"), "-o", str(self.out)]
        words = ["--model", str(self.model), "--device-memory", "8MiB"]
        words += ["--granule", "4KiB", "--dtype", "float32", "--max-num-seqs", "4", *self.options]
        run = subprocess.Popen(
            [KVCLUSTER, "run-batch", *files, *words],
            env={**os.environ, "RAY_ADDRESS": self.address},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.runs.append(run)
        return run

    def begun(self) -> subprocess.Popen[str]:
        """Started, and the first results are there."""
        run = self.start()
        eventually(lambda: self.out.exists() and len(self.out.read_bytes().splitlines()) > 6, "some lines are answered")
        return run

    def texts(self) -> list[str]:
        kept = results(self.out)
        return [kept[number]["response"]["body"]["choices"][0]["text"] for number in sorted(kept)]


Make = Callable[..., Job]


@pytest.fixture
def job(nodes: Cluster, tmp_path: Path, folder: Path) -> Iterator[Make]:
    made: list[Job] = []

    def make(*options: str, rounds: int) -> Job:
        asked = [
            line(f"{round_}/{place}", list(prompt), max_tokens=length, temperature=0, ignore_eos=True)
            for round_ in range(rounds)
            for place, (prompt, length) in enumerate(zip(PROMPTS, LENGTHS, strict=True))
        ]
        write_input(tmp_path / "in.jsonl", *asked)
        made.append(Job(tmp_path, nodes.address, folder, list(options)))
        return made[-1]

    yield make
    for each in made:
        for run in each.runs:
            with run:
                run.kill()


def ended(run: subprocess.Popen[str]) -> tuple[int, str, list[str]]:
    """Exit code, standard output, and the lines of standard error."""
    with run:
        shown, errors = run.communicate(timeout=2 * TIMEOUT_S)
    return run.returncode, shown, errors.splitlines()


def command(nodes: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [KVCLUSTER, *words, "--ray-address", nodes.address],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def standing(nodes: Cluster) -> dict[str, Any]:
    """What `status --json` says."""
    told: dict[str, Any] = json.loads(command(nodes, "status", "--json").stdout)
    return told


def test_a_job_on_two_nodes_loses_one_and_every_line_is_answered_exactly_once_and_only_its_sessions_end(
    nodes: Cluster, job: Make, wanted: list[str]
) -> None:
    other = nodes.add_node(**NODE)
    nodes.wait_for_nodes()
    rounds = 8
    each = job("--nodes", "all", rounds=rounds)
    run = each.begun()
    nodes.remove_node(other, allow_graceful=False)
    code, shown, errors = ended(run)
    assert code == 0, errors
    assert [line for line in errors if not OURS.fullmatch(line)] == []
    [last] = [told for told in errors if told.startswith(f"{6 * rounds} of {6 * rounds} lines, ")]
    assert last.endswith(", 1 worker died and its lines go on")
    assert each.texts() == rounds * wanted
    devices = [row for row in shown.splitlines() if row.startswith("host:0 on node ")]
    assert len(devices) == 2
    assert any(f"on node {other.node_id[:8]}" in row for row in devices)
    told = standing(nodes)
    [device] = told["owners"]
    held = device["bytes_by_kind"]
    assert (device["node_id"], device["sessions"]) == (nodes.head_node.node_id, [])
    assert held["free"] + held.get("retained", 0) == device["capacity_bytes"]
    died = [death["who"] for death in told["deaths"] if death["cause"] == NODE_DIED]
    assert [who["node_id"] for who in died if who["kind"] == WORKER] == [other.node_id]


def test_a_batch_job_that_is_cancelled_keeps_no_memory_and_goes_on_where_it_was_until_its_cluster_is_stopped(
    nodes: Cluster, job: Make, wanted: list[str]
) -> None:
    each = job(rounds=2_000)
    run = each.begun()
    run.terminate()
    code, _, errors = ended(run)
    assert (code, [line for line in errors if not OURS.fullmatch(line)]) == (130, [])
    told = standing(nodes)
    [device] = told["owners"]
    held = device["bytes_by_kind"]
    assert (device["sessions"], device["running_requests"], told["workers"]) == ([], 0, [])
    assert held["free"] + held.get("retained", 0) == device["capacity_bytes"]
    kept = len(each.texts())
    again = each.start()
    eventually(lambda: len(each.out.read_bytes().splitlines()) > kept, "it goes on")
    stopped = command(nodes, "stop")
    assert (stopped.returncode, stopped.stdout) == (0, ""), stopped.stderr
    code, shown, errors = ended(again)
    assert (code, shown) == (130, "")
    assert errors[-1].startswith("kvcluster: the cluster was told to stop (kvcluster stop): finished results are kept")
    told = standing(nodes)
    assert (told["owners"], told["workers"]) == ([], [])
    texts = each.texts()  # raises where a line stands twice
    assert len(texts) > kept
    assert set(texts) <= set(wanted)


def test_a_worker_that_hangs_is_named_by_stop_and_ended_by_force_and_its_job_ends_with_what_it_has(
    nodes: Cluster, job: Make
) -> None:
    each = job(rounds=2_000)
    run = each.begun()
    [worker] = [each["pid"] for each in standing(nodes)["workers"]]
    os.kill(worker, signal.SIGSTOP)
    asked = command(nodes, "stop", "--timeout", "1")
    assert asked.returncode == 1
    assert f"(process {worker}) did not end: it did not end its work within 1 s (--force ends it)" in asked.stderr
    forced = command(nodes, "stop", "--force")
    assert (forced.returncode, forced.stderr) == (0, "nothing of kvcluster runs on this cluster any more\n")
    assert has_ended(worker, 0.0)
    code, shown, errors = ended(run)
    assert (code, shown) == (130, "")
    assert errors[-1].startswith("kvcluster: the cluster was told to stop (kvcluster stop): finished results are kept")
    told = standing(nodes)
    assert (told["owners"], told["workers"]) == ([], [])
    assert len(each.texts()) > 6
