"""Replicas of Serve in `status` and `top`: ours by their word or their birth, and nobody else's.

Serve's own actors are in the tests of serving; here actors of its names answer as Serve lets a deployment answer.
"""

from __future__ import annotations

import os
import threading
from typing import Any
from uuid import uuid4

import pytest
import ray

from actors.records import read_log
from actors.replicas import replica_name, with_word
from actors.request import WORKER
from actors.standings import standing
from actors.supervisor import meet_supervisor, tell_birth
from kvcluster.services.answered import Answered
from kvcluster.services.chronicle import Who
from kvcluster.services.standing import WorkerStanding, WorkerState, WorkerWord
from tests.actors.world import TIMEOUT_S, World, eventually

ANSWERED = Answered(completed=3, refused={"server_busy": 2})


class Replica:
    """Answers its routing statistics with the word, with somebody else's values, with an error, or never."""

    def __init__(self, manner: str) -> None:
        self._manner = manner

    def record_routing_stats(self) -> dict[str, Any]:
        match self._manner:
            case "ours":
                word = WorkerWord(os.getpid(), "host:0", WorkerState.SERVING, 1, 2, 30, ANSWERED, "tiny")
                return with_word({"device": "host:0"}, word)
            case "hangs":
                threading.Event().wait()
            case "fails":
                raise ArithmeticError("of somebody else's making")
        return {"word": "hello"}

    def pid(self) -> int:
        return os.getpid()


def started(world: World, manner: str) -> tuple[str, Any]:
    full_id = f"SERVE_REPLICA::app#Model#{uuid4().hex[:8]}"
    actor = world.started(Replica, manner, name=full_id, namespace="serve", num_cpus=0, max_concurrency=2)
    return replica_name(full_id), actor


def seen(name: str, *, timeout_s: float = TIMEOUT_S) -> list[WorkerStanding]:
    return [worker for worker in standing(timeout_s=timeout_s).workers if worker.name == name]


def test_a_replica_of_ours_is_shown_by_its_own_word(world: World) -> None:
    name, actor = started(world, "ours")
    pid = ray.get(actor.pid.remote(), timeout=TIMEOUT_S)
    [found] = seen(name)
    assert found.word == WorkerWord(pid, "host:0", WorkerState.SERVING, 1, 2, 30, ANSWERED, "tiny")
    assert (found.pid, found.complaint) == (pid, None)


@pytest.mark.parametrize("manner", ["else", "fails", "hangs"])
def test_somebody_elses_replica_is_no_worker_of_ours_and_no_complaint(world: World, manner: str) -> None:
    name, actor = started(world, manner)
    ray.get(actor.pid.remote(), timeout=TIMEOUT_S)
    assert seen(name, timeout_s=0.5) == []


def test_a_replica_whose_birth_was_told_is_shown_with_its_process_though_it_hangs(world: World) -> None:
    name, actor = started(world, "hangs")
    pid = ray.get(actor.pid.remote(), timeout=TIMEOUT_S)
    meet_supervisor()
    tell_birth(Who(WORKER, name, world.node_id, pid))
    eventually(lambda: read_log().birth_of(WORKER, name, world.node_id), "its birth was told")
    [found] = seen(name, timeout_s=0.5)
    assert (found.pid, found.node_id, found.word) == (pid, world.node_id, None)
    assert found.complaint == "it does not answer"
