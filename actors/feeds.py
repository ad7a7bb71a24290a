"""What devices tell routers, asked for in turn: a task of asyncio a device, for as long as a replica sits there.

Each asks its device every `POLL_S` what changed; the device answers from memory and holds no thread for it. What is
decided in between is known without being told (`services.routing.pending`). A device that fails to answer is out of
touch: nothing is known of it and nobody prefers it, until it tells all again, whichever incarnation that is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any

import ray

from actors.owners import NAMESPACE
from kvcluster.services.known_blocks import KnownBlocks
from kvcluster.services.routing import Follower, KnownPrefixes

POLL_S = 0.2
ANSWER_S = 5.0  # one that takes longer hangs, or its node is gone
AGAIN_S = 0.5  # after one that did not answer: Ray starts an owner in about two seconds

_NOBODY: Any = None

logger = logging.getLogger(__name__)


class Feeds:
    """Into `known`; `changed` is called when a device came in touch or went out of it. For one event loop."""

    def __init__(self, known: KnownPrefixes, *, poll_s: float = POLL_S, changed: Callable[[], None]) -> None:
        self.in_touch: set[str] = set()
        self._known = known
        self._poll_s = poll_s
        self._changed = changed
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def follow_only(self, devices: Iterable[str]) -> None:
        """These, by their actors' names; what was followed and is not among them is left. Within a running loop."""
        wanted = set(devices)
        for device in self._tasks.keys() - wanted:
            self._tasks.pop(device).cancel()
            self._part(device)
            self._known.leave(device)
        for device in wanted - self._tasks.keys():
            self._tasks[device] = asyncio.get_running_loop().create_task(self._follow(device))

    async def _follow(self, device: str) -> None:
        follower, actor = Follower(device, self._known), _NOBODY
        while True:
            try:
                if actor is _NOBODY:
                    actor = await asyncio.to_thread(ray.get_actor, device, NAMESPACE)
                follower.take(await _answer(actor, follower))
            except Exception as failure:  # noqa: BLE001 - whatever it is, requests are routed without this device's word
                if device in self.in_touch:
                    logger.warning("%s does not say what it knows, and is asked again: %s", device, failure)
                actor = _NOBODY  # the next may be another one
                follower.lost()
                self._part(device)
                await asyncio.sleep(AGAIN_S)
            else:
                self._meet(device)
                await asyncio.sleep(self._poll_s)

    def _meet(self, device: str) -> None:
        if device not in self.in_touch:
            self.in_touch.add(device)
            self._changed()

    def _part(self, device: str) -> None:
        if device in self.in_touch:
            self.in_touch.remove(device)
            self._changed()


async def _answer(actor: Any, follower: Follower) -> KnownBlocks:
    """Raises RayError: there is none. TimeoutError: nor will there be, it seems."""
    asked = actor.known_since.remote(follower.epoch, follower.number)
    async with asyncio.timeout(ANSWER_S):  # not wait_for: Python 3.11's loses a cancel that comes with the answer
        answer: KnownBlocks = await asyncio.wrap_future(asked.future())
    return answer
