"""A replica without a model, which sits at a device and remembers prompts there as a worker does; and who calls it."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import NamedTuple

from ray import serve

from actors.proxies import open_session
from actors.routing_stats import RoutingStats
from kvcluster.config import Settings
from kvcluster.errors import DeviceUnreachable
from kvcluster.geometry.layout import Layout
from kvcluster.index.identity import CacheIdentity
from kvcluster.services.completion import CompletionRequest
from kvcluster.services.sequence import SequenceSpec
from tests.actors.client import GEOMETRY
from tests.actors.world import TIMEOUT_S, eventually

APP = "seats"
IDENTITY = CacheIdentity("the weights", "float32", str(Layout.TOKEN_MAJOR))


class Place(NamedTuple):
    """Where a request came to."""

    device: str
    pid: int


class Seat:
    """Of replicas with ranks 0, 1, … each sits at the device of that number."""

    def __init__(self, settings: Settings, node_id: str) -> None:
        self._node_id = node_id
        self._device = settings.device_names[serve.get_replica_context().rank.rank]
        self._one_at_a_time = threading.Lock()
        self._port = open_session(self._device, node_id, settings)

    def record_routing_stats(self) -> dict[str, object]:
        ours = RoutingStats.of(IDENTITY, device=self._device, node_id=self._node_id, token_bytes=GEOMETRY.token_bytes)
        return {**ours.to_dict(), "more": 1}

    def remember(self, request: CompletionRequest) -> Place:
        """A request with this prompt was computed, and has ended; what it leaves is found."""
        with self._one_at_a_time:
            eventually(lambda: self._is_remembered(request), f"{self._device} answers")
        return self(request)

    def _is_remembered(self, request: CompletionRequest) -> bool:
        if not self._port.in_touch():
            return False
        root, tokens = IDENTITY.salted(request.cache_salt).root, len(request.prompt)
        spec = SequenceSpec(GEOMETRY, Layout.TOKEN_MAJOR, tokens, shareable_tokens=tokens, cache_root=root)
        memory = self._port.memory(spec)
        try:
            memory.find(request.prompt, tokens)
        except DeviceUnreachable:  # it died just now
            return False
        memory.close(retain_tokens=tokens)
        return True

    def __call__(self, request: CompletionRequest) -> Place:
        return Place(self._device, os.getpid())

    def __del__(self) -> None:
        self._port.close()


class Caller:
    """Whoever sends requests to seats, in a process of its own: a handle's threads stay for as long as that."""

    def __init__(self) -> None:
        self._seats = serve.get_app_handle(APP)

    def remember(self, requests: Sequence[CompletionRequest]) -> list[Place]:
        """Where they come to, all at once."""
        answers = [self._seats.remember.remote(request) for request in requests]
        return [answer.result(timeout_s=TIMEOUT_S) for answer in answers]

    def places(self, requests: Sequence[CompletionRequest]) -> list[Place]:
        """Where they come to, one after another."""
        return [self._seats.remote(request).result(timeout_s=TIMEOUT_S) for request in requests]
