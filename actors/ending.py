"""Ending everything of ours on a running cluster, in order and in bounded time: `kvcluster stop`.

Workers end their loops at a step boundary, give their memory back, and tell their jobs so, which end with what is
finished. Owners of memory end when no session is left. Each step has its limit; what is left after it is named with
its process, and ended by force where that was asked for. Ray itself goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import ray

from actors.asking import FETCH_TIMEOUT_S, OWNERS, WORKERS, Silent, actors_named, answers
from actors.cluster import joined_cluster
from actors.leaving import leave_all
from actors.records import note_stop, read_log
from actors.replicas import replicas_of_endpoints
from actors.standings import process_of, standing
from actors.supervisor import living_supervisor
from kvcluster.config import ConfigError
from kvcluster.services.chronicle import Told
from kvcluster.services.session_file import started_at
from kvcluster.services.standing import Remaining

DRAIN_S = 30.0  # a worker's last step, or the model that it is loading
JOB_S = 5.0  # a job's end, once its workers have ended
LEAVE_S = 5.0  # an owner's, once its clients have ended
FORCE_S = 2.0  # of each kind, where force follows
KILLED_S = 10.0  # a stopped process ends 5 s after Ray killed it
_PAUSE_S = 0.1


def stop_cluster(address: str | None = None, *, drain_s: float = DRAIN_S) -> tuple[Remaining, ...]:
    """Ask everything of ours on the cluster at `address` (see `joined_cluster`) to end; who did not, and why.

    Workers have `drain_s` for their last step. No job replaces a worker from now on, also of those that remain.

    Raises:
        ConfigError: no cluster answers there, or an endpoint runs on it. Nothing was ended.
    """
    with joined_cluster(address):
        told = read_log()
        _check_no_endpoint(told)
        silent = _stop_workers(drain_s, job_s=JOB_S)
        _kill(actors_named(WORKERS), but=silent)  # their jobs are gone, or busy
        left = {name: _why(name, answer) for name, answer in leave_all(LEAVE_S).items()}
        if not silent | left:
            _end_supervisor()
        return tuple(_remaining(name, reason, told) for name, reason in (silent | left).items())


def force_cluster(address: str | None = None) -> tuple[Remaining, ...]:
    """The same, and who does not end is ended by force: what clients have mapped is theirs until they end.

    Raises:
        ConfigError: no cluster answers there, or an endpoint runs on it. Nothing was ended.
    """
    with joined_cluster(address):
        told = read_log()
        _check_no_endpoint(told)
        alive = _processes((*WORKERS, *OWNERS), told)
        _stop_workers(FORCE_S, job_s=FORCE_S)
        _kill(actors_named(WORKERS))
        leave_all(FORCE_S)
        answers(actors_named(OWNERS), lambda actor: actor.close.remote(), timeout_s=FORCE_S)
        _kill(actors_named(OWNERS))
        _until(lambda: not _alive(alive), KILLED_S)
        _end_supervisor()
        return tuple(_remaining(name, "it was killed, and its process still lives", told) for name in _alive(alive))


def _check_no_endpoint(told: Told) -> None:
    """Whatever of an endpoint is ended, Serve starts again: raises ConfigError."""
    if replicas := replicas_of_endpoints(told, timeout_s=FETCH_TIMEOUT_S):
        raise ConfigError(
            f"an endpoint runs on this cluster ({', '.join(replicas)}), and Ray Serve would start it again: end it "
            "first, with Ctrl-C where `kvcluster serve` runs, or `serve shutdown`"
        )


def _processes(prefixes: Iterable[str], told: Told) -> dict[str, tuple[int, int]]:
    """Those actors' processes on this machine, by name: each by its id and its start. The other nodes' are Ray's."""
    here = ray.get_runtime_context().get_node_id()
    pids = {name: process_of(name, told) for name in actors_named(tuple(prefixes)) if name.split("/")[1] == here}
    return {name: (pid, started) for name, pid in pids.items() if pid and (started := started_at(pid)) is not None}


def _alive(processes: dict[str, tuple[int, int]]) -> list[str]:
    return [name for name, (pid, started) in processes.items() if started_at(pid) == started]


def _stop_workers(timeout_s: float, *, job_s: float) -> dict[str, str]:
    """Those that have not ended their loops by then, and why; the others' jobs have `job_s` to hear their last results
    and to end.
    """
    note_stop()
    said = answers(actors_named(WORKERS), lambda actor: actor.stop.remote(), timeout_s=timeout_s)
    reason = f"it did not end its work within {timeout_s:.0f} s (--force ends it)"
    silent = {name: reason for name, answer in said.items() if isinstance(answer, Silent)}
    _until(lambda: not actors_named(WORKERS).keys() - silent.keys(), job_s)
    return silent


def _why(name: str, answer: object) -> str:
    if isinstance(answer, Silent):
        return f"{answer} (--force ends it)"
    _, node_id, device = name.split("/", 2)
    found = [
        owner
        for owner in standing(timeout_s=FETCH_TIMEOUT_S).owners
        if (owner.name, owner.node_id) == (device, node_id)
    ]
    pids = sorted({session.pid for owner in found for session in owner.sessions})
    clients = f"process {', '.join(map(str, pids))}" if pids else "somebody"
    return f"{clients} still has a session with it (--force ends it all the same)"


def _kill(actors: dict[str, Any], *, but: Iterable[str] = ()) -> None:
    for name, actor in actors.items():
        if name not in set(but):
            ray.kill(actor)


def _end_supervisor() -> None:
    if (supervisor := living_supervisor()) is not None:
        ray.kill(supervisor)


def _until(holds: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds() and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)


def _remaining(name: str, reason: str, told: Told) -> Remaining:
    _, node_id, rest = name.split("/", 2)
    return Remaining(rest, node_id, process_of(name, told), reason)
