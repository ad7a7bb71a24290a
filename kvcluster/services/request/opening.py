"""A request service, put together from its parts.

Nothing is asked of the device, nor of host pages, before the first request is admitted; the model is loaded already.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from kvcluster.services.kv_port import KvPort
from kvcluster.services.pages.port import PagePort
from kvcluster.services.request.beams import Beams
from kvcluster.services.request.inbox import Inbox
from kvcluster.services.request.intake import Intake
from kvcluster.services.request.outbox import Outbox
from kvcluster.services.request.place import open_places
from kvcluster.services.request.service import Parts, RequestService
from kvcluster.services.request.settings import RequestSettings

if TYPE_CHECKING:
    from kvcluster.engine.model import Model
    from kvcluster.engine.tokenizer import Tokenizer


def open_request_service(
    model: Model,
    tokenizer: Tokenizer,
    port: KvPort,
    settings: RequestSettings | None = None,
    *,
    pages: PagePort | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> RequestService:
    """A service that computes with `model` in memory of `port`'s device, and in host `pages` where they are given.

    The caller closes the ports after it.
    """
    chosen = settings or RequestSettings()
    inbox = Inbox()
    outbox = Outbox(inbox)
    places, moves = open_places(model, chosen, (port, pages), outbox=outbox, clock=clock)
    beams = Beams(pages, places[1].shared, give_up=places[1].desk.renew) if pages else None
    parts = Parts(Intake(model, tokenizer, chosen), inbox, outbox, moves, beams)
    return RequestService(model, tokenizer, places, parts, clock=clock)
