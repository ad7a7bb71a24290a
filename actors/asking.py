"""Asking every actor of ours the same at once, in bounded time: whoever hangs holds up nobody's answer.

Actors are found by their names, which need no dashboard: "device/<node>/<device>", "host-kv/<node>/<pages>",
"request/<node>/<job>/<worker>". One that ends between the two steps, as an idle device does, is left out. Replicas of
Ray Serve have names of its own, and are in `actors.replicas`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.util import list_named_actors

from actors.owners import NAMESPACE, OwnerKind, reason_of
from actors.request import WORKER
from kvcluster.errors import InvariantBroken, KvClusterError

ANSWER_TIMEOUT_S = 10.0
FETCH_TIMEOUT_S = 1.0  # of an answer that is there
SILENT = "it does not answer"
OWNERS = tuple(f"{kind}/" for kind in OwnerKind)
WORKERS = (f"{WORKER}/",)


class Silent(Exception):
    """An actor that is there, and of which there is no answer; in one sentence."""


class Pending(Silent):
    """Its answer may still come."""


def actors_named(prefixes: Sequence[str], *, namespace: str = NAMESPACE) -> dict[str, Any]:
    """The actors whose names begin so, by name, in its order."""
    named = list_named_actors(all_namespaces=True)
    names = sorted(actor["name"] for actor in named if actor["namespace"] == namespace)
    found = {name: _actor(name, namespace) for name in names if name.startswith(tuple(prefixes))}
    return {name: actor for name, actor in found.items() if actor is not None}


def answers(
    actors: dict[str, Any], ask: Callable[[Any], Any], *, timeout_s: float = ANSWER_TIMEOUT_S
) -> dict[str, Any | Silent]:
    """What each answers to `ask`, or a Silent; those that have ended are left out.

    Raises:
        What an actor itself raised, but for refusals and InvariantBroken: each is a Silent of its sentence.
    """
    return heard({name: ask(actor) for name, actor in actors.items()}, timeout_s=timeout_s)


def heard(asked: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any | Silent]:
    """What each answers that was asked so, when all have or the time is over; those that have ended are left out.

    Raises:
        As `answers`.
    """
    wait_for(list(asked.values()), timeout_s)
    said = {name: _heard(reference) for name, reference in asked.items()}
    return {name: each for name, each in said.items() if not isinstance(each, _Ended)}


def wait_for(references: Sequence[Any], timeout_s: float) -> None:
    """Return when all are answered, or the time is over."""
    if references:
        ray.wait(list(references), num_returns=len(references), timeout=timeout_s)


class _Ended:
    """In the place of an answer: the actor is dead."""


def _actor(name: str, namespace: str) -> Any | None:
    try:
        return ray.get_actor(name, namespace=namespace)
    except ValueError:  # it has ended
        return None


def _heard(reference: Any) -> Any | Silent | _Ended:
    ready, _ = ray.wait([reference], timeout=0)
    if not ready:
        return Pending(SILENT)
    try:
        return ray.get(reference, timeout=FETCH_TIMEOUT_S)
    except RayTaskError as error:
        if isinstance(error.cause, InvariantBroken):
            return Silent(error.cause.sentence)
        if isinstance(error.cause, KvClusterError):
            return Silent(str(error.cause))
        raise
    except GetTimeoutError:
        return Silent(SILENT)
    except ActorUnavailableError:
        return Silent("it ended, and is being started again")
    except RayActorError:
        return _Ended()
    except RayError as error:
        return Silent(reason_of(error))
