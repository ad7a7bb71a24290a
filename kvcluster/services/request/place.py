"""Where a service's memory comes from: a device, and beside it host pages, where there are any.

Each place has its own queue, its own frames and its own arrival numbers; the model computes the sequences of both in
one step. To the arithmetic of growing and sharing a page is a granule of so many tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcluster.geometry.residency import GroupShape, Shape
from kvcluster.services.kv_port import KvPort
from kvcluster.services.pacing import Pace
from kvcluster.services.request.desk import MemoryDesk
from kvcluster.services.request.moves import Moves
from kvcluster.services.request.outbox import Outbox
from kvcluster.services.request.settings import Fallback, RequestSettings
from kvcluster.services.request.shared import Shared

if TYPE_CHECKING:
    from kvcluster.engine.model import Model


@dataclass(frozen=True, slots=True)
class Place:
    port: KvPort
    shared: Shared
    desk: MemoryDesk


def open_places(
    model: Model,
    settings: RequestSettings,
    ports: tuple[KvPort, KvPort | None],
    *,
    outbox: Outbox,
    clock: Callable[[], float],
) -> tuple[tuple[Place, ...], Moves | None]:
    """The device's place first, then that of host pages, if there are any.

    They are for what the device refuses where so set; then there are moves between the two.
    """
    pace = Pace(least_s=settings.retry_after_min_s, most_s=settings.retry_after_max_s, clock=clock)
    places: list[Place] = []
    for port in filter(None, ports):
        shape = shape_at(port, model, settings)
        shared = Shared(model.geometry, model.dtype, settings, shape, outbox=outbox, pace=pace)
        places.append(Place(port, shared, MemoryDesk(port, shared, clock=clock)))
    shares = [place.shared for place in places]
    for shared in shares:
        shared.places, shared.tally = shares, shares[0].tally
    may_move = len(places) > 1 and settings.fallback is Fallback.HOST
    return tuple(places), _linked(*places, clock=clock) if may_move else None


def _linked(device: Place, pages: Place, *, clock: Callable[[], float]) -> Moves:
    """What one place refuses, or takes away, goes to the other."""
    device.shared.elsewhere, pages.shared.elsewhere = pages.shared, device.shared
    device.shared.overflow = pages.shared
    moves = Moves((device.port, device.shared), (pages.port, pages.shared), clock=clock)
    device.shared.flee = moves.flee
    return moves


def shape_at(port: KvPort, model: Model, settings: RequestSettings) -> Shape:
    """What a request's memory looks like there: granules of a device, or pages, each of so many tokens."""
    if port.welcome.block_tokens:
        return Shape((GroupShape(1, 1),), port.welcome.block_tokens)
    chunk_tokens = settings.prefill_chunk_tokens
    return Shape.of(model.geometry, settings.layout, port.welcome.granule_bytes, chunk_tokens=chunk_tokens)
