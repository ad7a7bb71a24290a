"""Owners that nobody uses leave, however another one hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray

from actors.asking import Pending
from actors.leaving import leave_all
from actors.owners import NAMESPACE
from tests.actors.world import TIMEOUT_S


class Leaving:
    """An owner whose last session ends a moment after it was first asked."""

    def __init__(self) -> None:
        self._asked = 0

    def is_there(self) -> bool:
        return True

    def leave(self) -> bool:
        self._asked += 1
        return self._asked > 1


class Hanging:
    """An owner that says nothing."""

    def is_there(self) -> bool:
        return True

    async def leave(self) -> bool:
        return await asyncio.Event().wait()


@contextmanager
def owners(**kinds: type) -> Iterator[None]:
    """One of each kind, under its name."""
    options = {"namespace": NAMESPACE, "num_cpus": 0}
    made: list[Any] = [
        ray.remote(kind).options(name=f"device/nowhere/{name}", **options).remote() for name, kind in kinds.items()
    ]
    ray.get([actor.is_there.remote() for actor in made], timeout=TIMEOUT_S)
    try:
        yield
    finally:
        for actor in made:
            ray.kill(actor)


def test_an_owner_that_hangs_keeps_no_other_from_being_asked_again_and_leaving(node_id: str) -> None:
    with owners(soon=Leaving, hung=Hanging):
        staying = leave_all(1.0)
    assert "device/nowhere/soon" not in staying
    assert isinstance(staying["device/nowhere/hung"], Pending)
