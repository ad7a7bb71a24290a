"""The start of a job's workers: until when each is waited for, and the sentence of what ended it.

A worker that dies on its way to its place, or while it loads the model, is replaced, as one that serves: by
`actors.workers`, `max_restarts` times. What a worker says itself (no such model, no memory of this size) every other
would say too, and ends the start at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from ray.exceptions import RayError, RayTaskError

from actors.seats import Seat
from actors.site import Site, shown_node
from kvcluster.config import ConfigError
from kvcluster.errors import KvClusterError
from kvcluster.services.workers import ClusterStopped, Event, WorkerLost, WorkerStopped

PLACE_TIMEOUT_S = 60.0
START_TIMEOUT_S = 600.0


class WorkerFailed(KvClusterError):
    """A worker could not be started."""

    def __init__(self, *, worker: int, reason: str) -> None:
        super().__init__(f"worker {worker} did not start: {reason}")
        self.worker = worker
        self.reason = reason


def own_error(error: RayError | ConfigError) -> Exception | None:
    """What is said by a worker, or of its place, against its start; None where it died."""
    if isinstance(error, RayTaskError) and isinstance(error.cause, KvClusterError | ConfigError):
        return error.cause
    return error if isinstance(error, RayTaskError | ConfigError) else None


def check_goes_on(event: Event, seats: Sequence[Seat]) -> None:
    """Whether the start goes on after what happened.

    Raises:
        ClusterStopped: a worker was told to stop.
        WorkerFailed: one died, and is not replaced any more.
    """
    if isinstance(event, WorkerStopped):
        raise ClusterStopped
    if isinstance(event, WorkerLost) and not event.returns:
        seat = seats[event.worker]
        tries = f", the last of {seat.restarts + 1}" if seat.restarts else ""
        raise WorkerFailed(worker=seat.number, reason=f"{event.reason} ({shown_node(seat.node_id)}{tries})")


def check_in_time(seats: Sequence[Seat], site: Site, *, waited_s: float) -> None:
    """Whether the start of all, which began so long ago, is to be waited for.

    Ray gives each its CPU, and its GPU, and waits for ever where others keep them all.

    Raises:
        WorkerFailed: one has no place after `PLACE_TIMEOUT_S`, or has not loaded the model after `START_TIMEOUT_S`.
    """
    if waited_s > PLACE_TIMEOUT_S and (placeless := [seat for seat in seats if not seat.pid and not seat.restarts]):
        raise WorkerFailed(worker=placeless[0].number, reason=_no_place(placeless[0], site))
    if waited_s > START_TIMEOUT_S and (late := [seat for seat in seats if not seat.is_ready]):
        reason = f"it did not load the model within {START_TIMEOUT_S:.0f} s"
        raise WorkerFailed(worker=late[0].number, reason=reason)


def _no_place(seat: Seat, site: Site) -> str:
    where = shown_node(seat.node_id) if len(site.nodes) > 1 else "this node"
    return (
        f"no {' or '.join(site.resources)} of {where} was free for it within {PLACE_TIMEOUT_S:.0f} s: wait for "
        f"the other jobs on the cluster, or start Ray with more "
        f"(ray start {', '.join(f'--num-{kind.lower()}s' for kind in site.resources)})"
    )
