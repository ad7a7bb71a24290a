"""Whether any replica of a model is there, and what it tells of the model, as one gateway knows it.

The gateway answers from its first moment on, and waits for no model: one that starts, fails or has no room is asked
for its facts again and again, beside the requests, which are Unavailable meanwhile, at once. The same asking finds a
model again whose replicas did not take a request in time: of a queue of clients only the first ones wait for that. Of
a model that is there it hears now and then, because its next replicas may have more memory, or less. No question that
fails ends the asking, however it fails.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any

from actors.losses import is_cancelled_here, loss_of
from actors.openai.seams import Unavailable
from actors.served_model import RELOAD_S, ModelFacts

ASK_S = 10.0  # for one answer; a replica that comes meanwhile answers at once
PAUSE_S = 0.5  # before the next, where there was none
AGAIN_S = 15.0  # where there was one
STARTING, NOBODY = "model_starting", "no_replica"

logger = logging.getLogger(__name__)


class Presence:
    """Of one model's replicas, whose deployment `handle` is. Used in one event loop."""

    def __init__(self, name: str, handle: Any, facts: ModelFacts | None = None) -> None:
        """With `facts` the model is there from the beginning."""
        self._name = name
        self._handle = handle
        self._facts = facts
        self._is_away = facts is None
        self._sought = asyncio.Event()

    @property
    def facts(self) -> ModelFacts | None:
        """What a replica told last, where any ever has: it holds while they are away too."""
        return self._facts

    def check(self) -> None:
        """Nothing, where a replica was there when it was last asked.

        Raises:
            Unavailable: none was.
        """
        if self._facts is None:
            raise Unavailable(STARTING, f"no replica of {self._name} is ready yet", retry_after_s=RELOAD_S)
        if self._is_away:
            raise Unavailable(NOBODY, f"no replica of {self._name} takes requests", retry_after_s=RELOAD_S)

    def missed(self) -> None:
        """No replica took a request in time: they are away until one answers to `watch`."""
        self._is_away = True
        self._sought.set()

    async def watch(self) -> None:
        """Ask for the facts, until cancelled."""
        while True:
            self._sought.clear()
            if (facts := await _facts_told(self._name, self._handle)) is not None:
                self._facts, self._is_away = facts, False
            if self._is_away:
                await asyncio.sleep(PAUSE_S)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_S):
                    await self._sought.wait()


async def _facts_told(name: str, handle: Any) -> ModelFacts | None:
    """What a replica tells within `ASK_S`; None where none does, for whatever reason: it is asked again."""
    try:
        return await _answer(handle)
    except asyncio.CancelledError:
        if is_cancelled_here():
            raise
    except TimeoutError:
        pass
    except Exception as error:  # noqa: BLE001 - whoever asks is not to end of it: the model would be away for ever
        if loss_of(error) is None:
            logger.warning("a replica of %s does not say what it is, and is asked again: %s", name, error)
    return None


async def _answer(handle: Any) -> ModelFacts:
    """Raises whatever becomes of the question, which is not under way any more then."""
    asked = handle.facts.remote()
    try:
        async with asyncio.timeout(ASK_S):
            facts: ModelFacts = await asked
            return facts
    except BaseException:
        asked.cancel()
        raise
