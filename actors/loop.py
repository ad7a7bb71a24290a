"""The loop of a request actor, without Ray and threads: step, wait, publish, until it is told to stop.

A process that cannot unmap what it gave up keeps those bytes charged for as long as it lives, and nobody else may
have them. So it does not live on: the loop fails, its owner ends the process and starts another, and its end is what
makes the bytes free.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from kvcluster.errors import Quarantined, Residue
from kvcluster.services.completion import Said

if TYPE_CHECKING:
    from kvcluster.services.request import RequestService

POLL_S = 0.5

Told = list[tuple[int, Said]]  # of requests, by their keys, in order


def serve(service: RequestService, *, stopping: threading.Event, publish: Callable[[Told], None]) -> None:
    """Run `service` until `stopping`, and close it. What was said is published in whatever way it ends, and where that
    is a failure nobody goes on with what it computed.

    Raises:
        Quarantined: only the end of this process frees what it still has mapped.
        Whatever the service raises: it is of no more use.
    """
    failed = True
    try:
        while not stopping.is_set():
            if not service.step():
                service.wait(POLL_S)
            publish(service.said())
            _check_nothing_kept(service)
        service.close()
        failed = False
    finally:
        if failed:
            service.distrust()
        publish(service.said())


def _check_nothing_kept(service: RequestService) -> None:
    if kept_bytes := service.statistics().quarantined_bytes:
        raise Quarantined(residue=(Residue("memory that this process could not unmap", kept_bytes),))
