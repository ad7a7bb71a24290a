"""Whoever asked for what is under way here, looked after: a gateway that was killed cancels nothing any more.

Ray tells an actor nothing of the deaths of those who call it (2.60). Measured: eight requests of a killed gateway went
on for as long as their `max_tokens` lasted, with all their memory, and nobody heard a word of it. Who asks is an actor
by its name; whether it lives is asked for now and then, and off the event loop, as long as something is under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import ray
from ray.exceptions import RayError

LOOK_EVERY_S = 2.0
_NAMESPACE = "serve"


def is_there(caller: str) -> bool:
    """Whether Serve's actor of this name lives, or nobody can say."""
    try:
        ray.get_actor(caller, namespace=_NAMESPACE)
    except ValueError:
        return False
    except RayError:
        return True
    return True


class Callers:
    """Of one replica. For one event loop."""

    def __init__(self, is_alive: Callable[[str], bool] = is_there, *, every_s: float = LOOK_EVERY_S) -> None:
        self._is_alive = is_alive
        self._every_s = every_s
        self._leaves: dict[str, list[Callable[[], None]]] = {}
        self._looking: asyncio.Task[None] | None = None

    @contextmanager
    def asking(self, caller: str, leave: Callable[[], None]) -> Iterator[None]:
        """Something is under way for this one, in the block; `leave` is called should it be found dead."""
        leaves = self._leaves.setdefault(caller, [])
        leaves.append(leave)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look())
        try:
            yield
        finally:
            leaves.remove(leave)
            if not leaves:
                del self._leaves[caller]

    async def _look(self) -> None:
        while self._leaves:
            await asyncio.sleep(self._every_s)
            for caller in list(self._leaves):
                if not await asyncio.to_thread(self._is_alive, caller):
                    for leave in list(self._leaves.get(caller, ())):
                        leave()
