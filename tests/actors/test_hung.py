"""Workers that hang, or find no place: noticed, and replaced or refused in one sentence."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import psutil
import pytest
import ray

from actors.cluster import open_cluster
from actors.starting import WorkerFailed
from actors.workers import RayWorkers
from kvcluster.services.completion import Completion
from kvcluster.services.workers import Finished, WorkerLost, WorkerReady
from tests.actors.answers import requests
from tests.actors.client import Client
from tests.actors.world import TIMEOUT_S, World, audit, eventually, has_ended

LEASE_S = 2.0
MARK = "KVCLUSTER_TEST_HUNG"
Kind = TypeVar("Kind", Finished, WorkerLost, WorkerReady)


def heard(cluster: RayWorkers, kind: type[Kind], *, count: int = 1) -> list[Kind]:
    """The first so many events of a kind."""
    found: list[Kind] = []

    def enough() -> bool:
        found.extend(event for event in cluster.wait(1.0) if isinstance(event, kind))
        return len(found) >= count

    eventually(enough, f"{count} times {kind.__name__}")
    return found


def request_actors(mark: str) -> set[int]:
    """The processes whose environment carries the mark."""
    return {process.pid for process in psutil.process_iter() if is_request_actor(process, mark)}


def is_request_actor(process: psutil.Process, mark: str) -> bool:
    try:
        name = " ".join(process.cmdline())
        return name.startswith("ray::RequestActor") and process.environ().get(MARK) == mark
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def test_a_worker_that_hangs_at_work_or_while_it_opens_is_ended_and_replaced(
    world: World, folder: Path, wanted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, mark = world.settings(model=str(folder), lease_s=LEASE_S, heartbeat_s=0.5), uuid4().hex
    monkeypatch.setattr("actors.workers.POLL_S", 1.0)
    with open_cluster(settings, worker_env={MARK: mark}) as cluster:
        [seat] = cluster.seats
        first = seat.pid
        assert request_actors(mark) == {first}
        os.kill(first, signal.SIGSTOP)
        cluster.submit(0, requests())
        [hung] = heard(cluster, WorkerLost)
        assert (hung.returns, hung.reason) == (True, "it did not answer for more than 3 s")
        [second] = eventually(lambda: request_actors(mark) - {first}, "the next one is there")
        os.kill(second, signal.SIGSTOP)
        monkeypatch.setattr("actors.workers.START_TIMEOUT_S", 4.0)
        [stuck] = heard(cluster, WorkerLost)
        assert stuck.reason == "it did not answer for more than 4 s"
        monkeypatch.undo()
        heard(cluster, WorkerReady)
        assert (seat.restarts, seat.pid != first) == (2, True)
        cluster.submit(0, requests())
        outcomes = {event.key: event.outcome for event in heard(cluster, Finished, count=len(wanted))}
    assert [said.text for key in sorted(outcomes) if isinstance(said := outcomes[key], Completion)] == wanted
    assert has_ended(first, TIMEOUT_S)
    assert has_ended(second, TIMEOUT_S)
    figures = audit(world.device(settings))
    assert figures.free_bytes + figures.retained_bytes == figures.capacity_bytes


def test_workers_that_find_no_free_cpu_are_refused_with_the_remedy(
    world: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = world.settings(model=str(folder))
    device = world.device(settings)
    world.started(Client, device, num_cpus=int(ray.available_resources()["CPU"]))
    eventually(lambda: ray.available_resources().get("CPU", 0) < 1, "every CPU is taken")
    monkeypatch.setattr("actors.starting.PLACE_TIMEOUT_S", 2.0)
    sentence = "worker 0 did not start: no CPU of this node was free for it within 2 s: wait for the other jobs on"
    with pytest.raises(WorkerFailed, match=sentence), open_cluster(settings):
        raise AssertionError("it opened")
