"""The start of a job's workers: each gets its place, and says its first word, or what went wrong says one sentence.

Not the place for what becomes of a worker that serves: `actors.workers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from actors.causes import cause_of
from actors.seats import Seat
from actors.site import Site, shown_node
from actors.spec import Placed
from kvcluster.config import ConfigError
from kvcluster.errors import KvClusterError

PLACE_TIMEOUT_S = 60.0
START_TIMEOUT_S = 600.0


class WorkerFailed(KvClusterError):
    """A worker could not be started."""

    def __init__(self, *, worker: int, reason: str) -> None:
        super().__init__(f"worker {worker} did not start: {reason}")
        self.worker = worker
        self.reason = reason


def places(seats: Sequence[Seat], site: Site) -> list[Placed]:
    """Where the workers are. Ray gives each its CPU, and its GPU, and waits for ever where others keep them all.

    Raises:
        WorkerFailed: one has no place after `PLACE_TIMEOUT_S`.
        ConfigError, KvClusterError: what the first said that cannot be where it is.
    """
    placed = [seat.actor.place.remote() for seat in seats]
    _, waiting = ray.wait(placed, num_returns=len(placed), timeout=PLACE_TIMEOUT_S)
    if waiting:
        first = seats[placed.index(waiting[0])]
        where = shown_node(first.node_id) if len(site.nodes) > 1 else "this node"
        reason = (
            f"no {' or '.join(site.resources)} of {where} was free for it within {PLACE_TIMEOUT_S:.0f} s: wait for "
            f"the other jobs on the cluster, or start Ray with more "
            f"(ray start {', '.join(f'--num-{kind.lower()}s' for kind in site.resources)})"
        )
        raise WorkerFailed(worker=first.number, reason=reason)
    return [first_word(seat, reference, PLACE_TIMEOUT_S) for seat, reference in zip(seats, placed, strict=True)]


def first_word(seat: Seat, reference: Any, timeout_s: float) -> Any:
    """What a worker that starts answers.

    Raises:
        ConfigError, KvClusterError: what it said; WorkerFailed: it did not.
    """
    try:
        return ray.get(reference, timeout=max(timeout_s, 0.0))
    except GetTimeoutError:
        reason = f"it did not load the model within {START_TIMEOUT_S:.0f} s"
        raise WorkerFailed(worker=seat.number, reason=reason) from None
    except RayTaskError as error:
        if isinstance(error.cause, KvClusterError | ConfigError):
            raise error.cause from None
        raise
    except RayError as error:
        reason = f"{cause_of(error, ending=seat.ending)} ({shown_node(seat.node_id)})"
        raise WorkerFailed(worker=seat.number, reason=reason) from None
