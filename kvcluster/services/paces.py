"""What a cluster does in a second: two looks at it, and what rose in between. For `kvcluster top` and GET /v1/kv.

A process counts from its own beginning, so that two looks are compared for one process only: whoever was started again
in between has no pace until the next look.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from kvcluster.services.standing import ClusterStanding, OwnerStanding, WorkerStanding

SHORTEST_S = 0.05  # between two looks: in less, a step's tokens would be a thousand a second


class Looks:
    """Looks one after the other, each with what rose since the one before it. `clock` in seconds, never going back."""

    def __init__(self, look: Callable[[], ClusterStanding], *, clock: Callable[[], float]) -> None:
        self._look = look
        self._clock = clock
        self._before: ClusterStanding | None = None
        self._looked_at_s = 0.0

    def look(self) -> ClusterStanding:
        """Raises what `look` raises, and the next is compared with the one before."""
        found, now_s = self._look(), self._clock()
        paced = with_paces(found, self._before, now_s - self._looked_at_s) if self._before else found
        self._before, self._looked_at_s = found, now_s
        return paced


def with_paces(now: ClusterStanding, before: ClusterStanding, seconds: float) -> ClusterStanding:
    """The same with what rose since `before`, so many seconds ago."""
    if seconds < SHORTEST_S:
        return now
    owners = {_process(owner): owner for owner in before.owners}
    workers = {_process(worker): worker for worker in before.workers}
    return replace(
        now,
        owners=tuple(_owner(owner, owners.get(_process(owner)), seconds) for owner in now.owners),
        workers=tuple(_worker(worker, workers.get(_process(worker)), seconds) for worker in now.workers),
    )


def _owner(now: OwnerStanding, before: OwnerStanding | None, seconds: float) -> OwnerStanding:
    if before is None or now.complaint is not None or before.complaint is not None:
        return now
    return replace(now, refusals_per_s=_rises(now.refusals, before.refusals, seconds))


def _worker(now: WorkerStanding, before: WorkerStanding | None, seconds: float) -> WorkerStanding:
    if before is None or now.word is None or before.word is None:
        return now
    risen_tokens = now.word.generated_tokens - before.word.generated_tokens
    refused = _rises(now.word.answered.refused, before.word.answered.refused, seconds)
    return replace(now, tokens_per_s=risen_tokens / seconds, refused_per_s=refused)


def _rises(now: Mapping[str, int], before: Mapping[str, int], seconds: float) -> dict[str, float]:
    return {reason: (count - before.get(reason, 0)) / seconds for reason, count in now.items()}


def _process(of: OwnerStanding | WorkerStanding) -> tuple[str, str, int, int]:
    """Its life: counts of two are not compared."""
    return of.name, of.node_id, of.pid, of.epoch if isinstance(of, OwnerStanding) else 0
