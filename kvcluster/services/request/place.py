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
from kvcluster.services.request.desk import MemoryDesk
from kvcluster.services.request.moves import Moves
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
    model: Model, settings: RequestSettings, device: KvPort, pages: KvPort | None, *, clock: Callable[[], float]
) -> tuple[tuple[Place, ...], Moves | None]:
    """The device's place first, then that of `pages`, if there are any, which is for what the device refuses where so
    set; then there are moves between the two."""
    ports = [device] if pages is None else [device, pages]
    shares = [Shared(model.geometry, model.dtype, settings, shape_at(port, model, settings)) for port in ports]
    for shared in shares:
        shared.places, shared.tally = shares, shares[0].tally
    moves = None
    if pages is not None and settings.fallback is Fallback.HOST:
        shares[0].elsewhere, shares[1].elsewhere, shares[0].overflow = shares[1], shares[0], shares[1]
        moves = Moves((device, shares[0]), (pages, shares[1]), clock=clock)
        shares[0].flee = moves.flee
    desks = [MemoryDesk(port, shared, clock=clock) for port, shared in zip(ports, shares, strict=True)]
    return tuple(Place(*parts) for parts in zip(ports, shares, desks, strict=True)), moves


def shape_at(port: KvPort, model: Model, settings: RequestSettings) -> Shape:
    """What a request's memory looks like there: granules of a device, or pages, each of so many tokens."""
    if port.welcome.block_tokens:
        return Shape((GroupShape(1, 1),), port.welcome.block_tokens)
    chunk_tokens = settings.prefill_chunk_tokens
    return Shape.of(model.geometry, settings.layout, port.welcome.granule_bytes, chunk_tokens=chunk_tokens)
