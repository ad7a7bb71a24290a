"""`kvcluster status` and `kvcluster stop` on a real Ray: who is shown, who does not answer, who ends, and who not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import ray

from actors.devices import find_device
from actors.standings import counted, standing
from actors.supervisor import meet_supervisor, tell_death
from actors.workers import RayWorkers
from kvcluster.config import Settings
from kvcluster.services.chronicle import Who
from kvcluster.services.standing import OwnerStanding, WorkerState
from tests.actors.test_audit_command import holding, stopped
from tests.actors.world import CAPACITY, GRANULE, TIMEOUT_S, World, eventually

KVCLUSTER = str(Path(sys.executable).with_name("kvcluster"))


def run(*words: str, address: str | None = None) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, on the tests' cluster or another address."""
    environment = {**os.environ, "RAY_ADDRESS": address or ray.get_runtime_context().gcs_address}
    return subprocess.run(
        [KVCLUSTER, *words], env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


def owner(name: str, *, timeout_s: float = TIMEOUT_S) -> OwnerStanding:
    [found] = [each for each in standing(timeout_s=timeout_s).owners if each.name == name]
    return found


def test_memory_clients_workers_and_deaths_are_shown_with_their_processes(
    world: World, cluster: RayWorkers, pair: tuple[RayWorkers, Settings]
) -> None:
    _, settings = pair
    seat = cluster.seats[0]
    device = find_device(seat.device, world.node_id, settings)
    client = holding(world, device, 9)
    pid, _ = ray.get(client.session.remote(), timeout=TIMEOUT_S)
    meet_supervisor()
    tell_death(Who("request", "abc/0", world.node_id, 4_321), "it was killed by SIGKILL")
    found = owner(device.name)
    assert (found.pid, found.number, found.capacity_bytes) == (device.address.pid, 1, CAPACITY)
    assert found.bytes_by_kind["request"] == 9 * GRANULE
    assert {session.pid for session in found.sessions} == {pid, seat.pid}
    [worker] = [each for each in standing(timeout_s=TIMEOUT_S).workers if each.pid == seat.pid]
    assert worker.word is not None
    assert (worker.word.device, worker.word.state, worker.word.waiting) == (device.name, WorkerState.SERVING, 0)
    assert worker.word.model == Path(settings.model).name
    done = run("top", "--json", "--interval", "0.1")
    assert done.returncode == 0
    [worker_told] = [each for each in json.loads(done.stdout)["workers"] if each["pid"] == seat.pid]
    assert worker_told["tokens_per_s"] == 0.0
    done = run("status")
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines()]
    [shown] = [line for line in lines if line[:1] == [device.name] and len(line) > 6]
    assert shown[2] == str(device.address.pid)
    assert any(line[:4] == ["request", "abc/0", world.node_id[:8], "4321"] for line in lines), lines


def test_one_that_hangs_is_shown_with_its_process_and_exit_code_1(world: World) -> None:
    silent, well = (world.device(world.settings()) for _ in range(2))
    eventually(lambda: owner(silent.name).pid, "its birth was told")
    with stopped(silent.address.pid):
        found = owner(silent.name, timeout_s=0.5)
        assert (found.complaint, found.pid) == ("it does not answer", silent.address.pid)
        assert owner(well.name, timeout_s=0.5).complaint is None
        seen = {each.name: each.complaint for each in standing(timeout_s=0.5, ask=counted).owners}
        assert (seen[silent.name], seen[well.name]) == ("it does not answer", None)
        done = run("status", "--json")
    sentence = f"{silent.name} on node {world.node_id[:8]} (process {silent.address.pid}): it does not answer"
    assert done.returncode == 1
    assert sentence in done.stderr
    assert sentence in json.loads(done.stdout)["complaints"]


@pytest.mark.parametrize("command", ["status", "stop"])
def test_no_cluster_is_one_sentence_and_exit_code_2(node_id: str, command: str) -> None:
    done = run(command, address="127.0.0.1:1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "kvcluster: no Ray cluster answers at '127.0.0.1:1': start it, or unset RAY_ADDRESS\n"
