"""Waiting for tasks that are to end before anybody goes on, however often whoever waits is cancelled meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any


async def to_their_end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Returns when all have ended, however they did: what they failed of is not raised.

    Raises:
        asyncio.CancelledError: whoever waits was cancelled; they have all ended.
    """
    ending, cancelled = list(tasks), None
    while under_way := [task for task in ending if not task.done()]:
        try:
            await asyncio.wait(under_way)
        except asyncio.CancelledError as again:
            cancelled = again
    for task in ending:
        if not task.cancelled():
            task.exception()  # looked at: else asyncio says that nobody did
    if cancelled is not None:
        raise cancelled
