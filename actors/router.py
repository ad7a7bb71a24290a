"""The request router of Serve that knows prefixes: named in a deployment's `request_router_config` by this module.

A request goes to a replica at the device that knows most of its prompt, as `actors.routes` ranks them: first all that
sit there, of which Serve takes the least busy one, then two others by chance, then two that told nothing yet. Where
anything is missing or fails it is Serve's power of two choices. The request is the call's first argument.

Without Serve's FIFOMixin: that one gives the replica that was chosen for a request to whichever came first. So Serve
looks up who waits by the number of an HTTP request: whoever calls several times for one does so in contexts of their
own (`actors.served_models`), or only one of the calls is sent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from actors.feeds import POLL_S
from actors.routes import Choice, Routes, by_chance

_CHOICE = "kvcluster_choice"  # what a request that waits carries of ours

logger = logging.getLogger(__name__)


class PrefixRouter(RequestRouter):  # type: ignore[misc]
    """One a process and deployment that it calls; all of it on Serve's own event loop."""

    def initialize_state(self, *, poll_s: float = POLL_S) -> None:
        """Serve calls it once, with the `request_router_kwargs`: devices are asked every `poll_s` what they know."""
        self._routes: Routes[RunningReplica] = Routes(poll_s=poll_s)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Lists of replicas, each to be tried before the next."""
        usual = [by_chance(candidate_replicas)]
        if pending_request is None or not pending_request.args:
            return usual
        pending_request.routing_context.should_backoff = True  # where all are full, the next look waits for a moment
        choice: Choice = vars(pending_request).setdefault(_CHOICE, Choice())  # Serve asks again after each wait
        return self._kept(lambda: self._routes.ranks(pending_request.args[0], choice)) or usual

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        self._kept(lambda: self._routes.seat(replicas))

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        super().on_replica_actor_died(replica_id)
        self._kept(lambda: self._routes.gone(replica_id))

    def on_send_request(self, replica_id: ReplicaID) -> None:
        super().on_send_request(replica_id)
        self._kept(lambda: self._routes.sent(replica_id))

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        super().on_request_completed(replica_id, internal_request_id)
        self._kept(lambda: self._routes.ended(replica_id))

    def _kept(self, act: Callable[[], Any]) -> Any:
        """What it comes to; None where it fails: nothing of ours keeps Serve from routing."""
        try:
            return act()
        except Exception:
            logger.exception("a request is routed without regard to what devices know")
            return None
