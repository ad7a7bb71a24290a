"""How a running cluster stands: owners of memory, workers, and the last deaths, for `kvcluster status`.

Everybody is asked at once, and within a bounded time. Of one that hangs the log of births tells the process, so that
a person can look at it; the log lies with Ray's control process, and is read also where no supervisor lives.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from actors.asking import ANSWER_TIMEOUT_S, OWNERS, WORKERS, Silent, actors_named, answers
from actors.cluster import joined_cluster
from actors.records import read_log
from kvcluster.services.chronicle import Birth, Told
from kvcluster.services.pages.statistics import PageStatistics
from kvcluster.services.standing import ClusterStanding, OwnerStanding, SessionStanding, WorkerStanding, WorkerWord
from kvcluster.services.statistics import DeviceStatistics


def cluster_standing(address: str | None = None) -> ClusterStanding:
    """Of the cluster at `address`, or RAY_ADDRESS, or the one on this machine.

    Raises:
        ConfigError: no cluster answers there.
    """
    with joined_cluster(address):
        return standing()


def standing(*, timeout_s: float = ANSWER_TIMEOUT_S) -> ClusterStanding:
    """The same of the cluster that this process is connected to."""
    owners, workers = actors_named(OWNERS), actors_named(WORKERS)
    counted = answers(owners, lambda actor: actor.audit.remote(), timeout_s=timeout_s)
    words = answers(workers, lambda actor: actor.standing.remote(), timeout_s=timeout_s)
    told = read_log()
    return ClusterStanding(
        tuple(_owner(name, said, told) for name, said in counted.items()),
        tuple(_worker(name, said, told) for name, said in words.items()),
        told.deaths,
    )


def bytes_by_kind(accounts: Mapping[str, int]) -> dict[str, int]:
    """The accounts of a ledger, those of a kind together: "request/session/number@tenant" is a request."""
    held = Counter[str]()
    for account, size_bytes in accounts.items():
        held[re.split("[/@]", account)[0]] += size_bytes
    return dict(held)


def process_of(name: str, told: Told) -> int:
    """The process behind an actor's name, as far as its birth was told; else 0."""
    birth = _birth(name, told)
    return birth.who.pid if birth else 0


def _birth(name: str, told: Told) -> Birth | None:
    """Of the actor of this name. A worker's name has the number of its life in the end, and its birth's has not."""
    kind, node_id, rest = name.split("/", 2)
    return told.birth_of(kind, rest.rpartition(".")[0] if f"{kind}/" in WORKERS else rest, node_id)


def _owner(name: str, said: DeviceStatistics | PageStatistics | Silent, told: Told) -> OwnerStanding:
    kind, node_id, device = name.split("/", 2)
    birth = _birth(name, told)
    pid, number, epoch = (birth.who.pid, birth.number, birth.who.epoch) if birth else (0, 0, 0)
    if isinstance(said, Silent):
        return OwnerStanding(kind, device, node_id, pid, number, epoch, complaint=str(said))
    return OwnerStanding(
        kind=kind,
        name=device,
        node_id=node_id,
        pid=pid,
        number=number,
        epoch=said.epoch,
        capacity_bytes=said.capacity_bytes,
        bytes_by_kind=bytes_by_kind(said.accounts),
        sessions=_sessions(said),
        open_requests=said.open_requests,
        running_requests=said.running_requests,
    )


def _sessions(said: DeviceStatistics | PageStatistics) -> tuple[SessionStanding, ...]:
    return tuple(
        SessionStanding(said.pids.get(name, 0), state, said.silent_s.get(name, 0.0))
        for name, state in said.sessions.items()
    )


def _worker(name: str, said: WorkerWord | Silent, told: Told) -> WorkerStanding:
    _, node_id, worker = name.split("/", 2)
    if isinstance(said, Silent):
        return WorkerStanding(worker, node_id, process_of(name, told), None, str(said))
    return WorkerStanding(worker, node_id, said.pid, said)
