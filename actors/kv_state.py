"""The body of GET /v1/kv: how the cluster's memory stands, as one JSON object, the same as `kvcluster top --json`.

However many ask, the cluster is looked at once a second and by one of them; the others get what that one saw. A look
waits for nobody longer than `actors.standings.GLANCE_S`; where Ray itself does not answer, the object says so. Nothing
is decided by it, and a request that is answered never waits for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from ray.exceptions import RayError

from actors.owners import reason_of
from actors.standings import glance
from kvcluster.services.paces import Looks
from kvcluster.services.standing import ClusterStanding, picture

KEPT_S = 1.0
LIMIT_S = 5.0  # a look waits for actors no longer than 3 s: beyond this it is Ray that does not answer
NOBODY_SEEN = ClusterStanding((), (), ())


class KvStates:
    """Of one event loop; `clock` in seconds, never going back."""

    def __init__(
        self,
        look: Callable[[], ClusterStanding] = glance,
        *,
        clock: Callable[[], float] = time.monotonic,
        limit_s: float = LIMIT_S,
    ) -> None:
        self._looks = Looks(look, clock=clock)
        self._clock = clock
        self._limit_s = limit_s
        self._kept: dict[str, Any] = {}
        self._kept_until_s = clock()
        self._looking: asyncio.Task[dict[str, Any]] | None = None

    async def state(self) -> dict[str, Any]:
        """The state, at most a second old. Never raises; the reason why there is none is in its "complaints"."""
        if self._kept and self._clock() < self._kept_until_s:
            return self._kept
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(asyncio.to_thread(self._look))
        try:
            return await asyncio.wait_for(asyncio.shield(self._looking), self._limit_s)
        except TimeoutError:
            return _unseen(f"Ray does not answer within {self._limit_s:.0f} s")

    def _look(self) -> dict[str, Any]:
        try:
            self._kept = picture(self._looks.look())
        except RayError as error:
            return _unseen(reason_of(error))
        self._kept_until_s = self._clock() + KEPT_S
        return self._kept


_STATES = KvStates()


async def kv_state() -> dict[str, Any]:
    """The state of the cluster that this process is connected to. Never raises: see `KvStates.state`."""
    return await _STATES.state()


def _unseen(reason: str) -> dict[str, Any]:
    return {**picture(NOBODY_SEEN), "complaints": [reason]}
