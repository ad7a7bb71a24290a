"""How a running cluster stands: owners of memory, workers, and the last deaths, for `kvcluster status` and `top`.

Everybody is asked at once, with one limit for all. Of one that hangs the log of births tells the process, so that
a person can look at it; the log lies with Ray's control process, and is read also where no supervisor lives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from actors.asking import OWNERS, WORKERS, Silent, actors_named, heard, wait_for
from actors.cluster import check_still_there, joined_cluster
from actors.records import read_log
from actors.replicas import ask_replicas, replicas_heard
from kvcluster.services.by_kind import bytes_by_kind, refusals_by_reason
from kvcluster.services.chronicle import Birth, Told
from kvcluster.services.pages.statistics import PageStatistics
from kvcluster.services.standing import ClusterStanding, OwnerStanding, SessionStanding, WorkerStanding, WorkerWord
from kvcluster.services.statistics import DeviceStatistics

LOOK_S = 5.0  # for everybody's answer
GLANCE_S = 3.0

Ask = Callable[[Any], Any]


def audited(owner: Any) -> Any:
    """An owner's figures, after it has counted its books."""
    return owner.audit.remote()


def counted(owner: Any) -> Any:
    """An owner's figures as they are kept: for whoever looks again and again."""
    return owner.statistics.remote()


def cluster_standing(address: str | None = None) -> ClusterStanding:
    """Of the cluster at `address`, or RAY_ADDRESS, or the one on this machine.

    Raises:
        ConfigError: no cluster answers there.
    """
    with joined_cluster(address):
        return standing()


@contextmanager
def cluster_glances(address: str | None = None) -> Iterator[Callable[[], ClusterStanding]]:
    """In the block: the same again and again, of books as they are kept.

    Raises:
        ConfigError: no cluster answers there; from a look: it has ended.
    """
    with joined_cluster(address):
        yield _glance_if_there


def _glance_if_there() -> ClusterStanding:
    check_still_there()
    return glance()


def glance() -> ClusterStanding:
    """How the cluster stands that this process is connected to, by books as they are kept."""
    return standing(timeout_s=GLANCE_S, ask=counted)


def standing(*, timeout_s: float = LOOK_S, ask: Ask = audited) -> ClusterStanding:
    """The same with the figures that owners answer to `ask`. Nobody is waited for longer than `timeout_s`."""
    owners = {name: ask(actor) for name, actor in actors_named(OWNERS).items()}
    workers = {name: actor.standing.remote() for name, actor in actors_named(WORKERS).items()}
    replicas = ask_replicas()
    wait_for([*owners.values(), *workers.values(), *replicas.values()], timeout_s)
    told = read_log()
    return ClusterStanding(
        tuple(_owner(name, said, told) for name, said in heard(owners, timeout_s=0.0).items()),
        (
            *(_worker(name, said, told) for name, said in heard(workers, timeout_s=0.0).items()),
            *replicas_heard(replicas, told),
        ),
        told.deaths,
    )


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
        refusals=refusals_by_reason(said),
        evictions=said.evictions,
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
