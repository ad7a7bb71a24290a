"""Reservations of two fragments, and handles for their windows."""

from __future__ import annotations

from kvcluster.driver.protocol import PhysicalHandle
from kvcluster.geometry.residency import GroupShape, RangeMap, Shape
from kvcluster.ids import HandleId, RequestId
from kvcluster.memory.handle import Handle, HandleState
from kvcluster.memory.handle_sizes import HandleSizes
from kvcluster.memory.reservation import Reservation, Terms

SHAPE = Shape((GroupShape(2, 256),), 4096)  # two fragments, 16 tokens a granule
MOST = 160


def reservation(shape: Shape = SHAPE, max_tokens: int = MOST) -> Reservation:
    sizes = HandleSizes.of(shape, 0, shape.granule_bytes)
    return Reservation(RequestId("s", 1), RangeMap(shape, max_tokens), Terms(sizes, 1))


def handles(count: int, granule_bytes: int = 4096) -> list[Handle]:
    return [Handle(HandleId(n, 0), PhysicalHandle(n, granule_bytes), HandleState.OUT) for n in range(count)]


def given_windows(mine: Reservation, tokens: int) -> list[Handle]:
    runs = mine.missing(tokens)
    found = handles(sum(run.count for run in runs), mine.range_map.shape.granule_bytes)
    mine.attach(runs, found)
    return found


def bulk(*granules: int) -> list[Handle]:
    return [Handle(HandleId(n, 0), PhysicalHandle(n, size * 4096), HandleState.OUT) for n, size in enumerate(granules)]
