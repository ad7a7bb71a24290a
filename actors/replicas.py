"""Replicas of Ray Serve that are ours, as `kvcluster status` and `top` see them: asked by name, like any other actor.

Serve gives a replica's actor its name and its methods, so that it cannot be asked `standing`. What it does answer from
outside is its routing statistics (`record_routing_stats`), and ours carry the replica's word in them. Other people's
deployments on the cluster answer something else, and are left out; of a silent one the log of births says whose it is.
Names and the method are Ray's own (2.60).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from actors.asking import FETCH_TIMEOUT_S, SILENT, Pending, Silent, actors_named
from actors.owners import reason_of
from actors.request import WORKER
from kvcluster.services.chronicle import Birth, Told
from kvcluster.services.standing import WorkerStanding, WorkerWord, decoded_word, encoded_word

WORD = "word"  # where it lies among a replica's routing statistics
_NAMESPACE = "serve"
_PREFIX = "SERVE_REPLICA::"


def replica_name(full_id: str) -> str:
    """A replica's name for people, and in the log of births, of the kind `WORKER`: "application#deployment#number"."""
    return full_id.removeprefix(_PREFIX)


def with_word(routing: Mapping[str, Any], word: WorkerWord) -> dict[str, Any]:
    """What a replica's `record_routing_stats` returns: what routers need, and how it stands."""
    return {**routing, WORD: encoded_word(word)}


def ask_replicas() -> dict[str, Any]:
    """Every replica on this cluster is asked how it stands: the references of their answers, by name."""
    named = actors_named((_PREFIX,), namespace=_NAMESPACE)
    return {replica_name(name): actor.record_routing_stats.remote() for name, actor in named.items()}


def replicas_heard(asked: Mapping[str, Any], told: Told) -> tuple[WorkerStanding, ...]:
    """Those of ours among the asked, with what they have answered by now. Never waits and never raises."""
    found = ((name, _said(reference)) for name, reference in asked.items())
    standings = (_standing(name, said, _birth(name, told)) for name, said in found)
    return tuple(standing for standing in standings if standing is not None)


def replicas_of_endpoints(told: Told, *, timeout_s: float) -> tuple[str, ...]:
    """The names of ours that there are, those that say nothing within so long too. Never raises."""
    asked = ask_replicas()
    if asked:
        ray.wait(list(asked.values()), num_returns=len(asked), timeout=timeout_s)
    return tuple(replica.name for replica in replicas_heard(asked, told))


def _birth(name: str, told: Told) -> Birth | None:
    births = (birth for birth in told.births if (birth.who.kind, birth.who.name) == (WORKER, name))
    return next(births, None)


def _said(reference: Any) -> WorkerWord | Silent | None:
    """None: it ended, or is somebody else's."""
    if not ray.wait([reference], timeout=0)[0]:
        return Pending(SILENT)
    try:
        said = ray.get(reference, timeout=FETCH_TIMEOUT_S)
    except RayActorError:
        return None
    except RayTaskError as error:  # Serve's wrapper has not made ours yet
        return Silent("it is starting" if isinstance(error.cause, AttributeError) else reason_of(error))
    except RayError as error:
        return Silent(reason_of(error))
    return decoded_word(said.get(WORD)) if isinstance(said, Mapping) else None


def _standing(name: str, said: WorkerWord | Silent | None, birth: Birth | None) -> WorkerStanding | None:
    node_id, pid = (birth.who.node_id, birth.who.pid) if birth else ("", 0)
    if isinstance(said, WorkerWord):
        return WorkerStanding(name, node_id, said.pid, said)
    if said is None or birth is None:
        return None
    return WorkerStanding(name, node_id, pid, None, str(said))
