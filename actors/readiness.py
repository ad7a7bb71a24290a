"""Whether some replica of each model would compute a request now: what GET /health answers, open to all.

However many ask, the replicas are asked once a second and by one of them; the others hear what that one did. The
question waits in the same queue as requests do: a full one says that there are more requests than may be, and nothing
against those who compute them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from ray.serve.exceptions import BackPressureError

from actors.losses import MAY_BE_LOSS, loss_of
from actors.openai.seams import Unavailable
from actors.presence import NOBODY
from actors.served_model import RELOAD_S, lost
from kvcluster.services.completion import Refused

READY_S = 3.0  # for an answer
KEPT_S = 1.0


class Readiness:
    """Of the models whose deployments these handles are, by name. Used in one event loop; `clock` gives seconds."""

    def __init__(self, handles: Mapping[str, Any], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._handles = dict(handles)
        self._clock = clock
        self._kept_until_s = clock()
        self._looking: asyncio.Task[list[Refused | None]] | None = None

    async def check(self) -> None:
        """Nothing, where each would; at most a second old.

        Raises:
            Unavailable: of some model none does.
        """
        if self._looking is None or (self._looking.done() and self._clock() >= self._kept_until_s):
            self._looking = asyncio.create_task(self._look())
        for refused in await asyncio.shield(self._looking):
            if refused is not None:
                raise Unavailable(refused.code, refused.message, retry_after_s=refused.retry_after_s or RELOAD_S)

    async def _look(self) -> list[Refused | None]:
        try:
            return await asyncio.gather(*(_refusal(*each) for each in self._handles.items()))
        finally:
            self._kept_until_s = self._clock() + KEPT_S


async def _refusal(name: str, handle: Any) -> Refused | None:
    """Why no request would be computed, if so."""
    asked = handle.ready.remote()
    try:
        with suppress(BackPressureError):
            async with asyncio.timeout(READY_S):
                refused: Refused | None = await asked
                return refused
    except TimeoutError:
        asked.cancel()
        return Refused(503, NOBODY, f"no replica of {name} answers", retry_after_s=RELOAD_S)
    except MAY_BE_LOSS as error:
        if (why := loss_of(error)) is None:
            raise
        return lost(why)
    return None
