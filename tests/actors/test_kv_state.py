"""The body of GET /v1/kv: one look for all who ask, a bounded wait, and a reason where there is nothing to see."""

from __future__ import annotations

import asyncio
import threading

import pytest
from ray.exceptions import RaySystemError

from actors.kv_state import KEPT_S, KvStates
from kvcluster.services.standing import ClusterStanding, OwnerStanding, picture
from kvcluster.testing.clock import ManualClock

FOUND = ClusterStanding((OwnerStanding("device", "host:0", "0123", 11, 1, epoch=7),), (), ())


class Cluster:
    """Counts how often it is looked at; a look takes until `gate` is open."""

    def __init__(self) -> None:
        self.looks = 0
        self.gate = threading.Event()
        self.gate.set()

    def look(self) -> ClusterStanding:
        self.looks += 1
        assert self.gate.wait(60)
        return FOUND


def test_many_who_ask_in_one_second_get_one_look_and_the_next_second_another() -> None:
    cluster, clock = Cluster(), ManualClock()

    async def asked() -> None:
        states = KvStates(cluster.look, clock=clock)
        together = await asyncio.gather(*(states.state() for _ in range(20)))
        assert together == [picture(FOUND)] * 20
        clock.advance(KEPT_S / 2)
        assert (await states.state(), cluster.looks) == (picture(FOUND), 1)
        clock.advance(KEPT_S / 2)
        assert (await states.state(), cluster.looks) == (picture(FOUND), 2)

    asyncio.run(asked())


def test_whoever_leaves_while_the_look_goes_on_ends_it_for_nobody() -> None:
    cluster = Cluster()
    cluster.gate.clear()

    async def asked() -> None:
        states = KvStates(cluster.look)
        leaving, staying = (asyncio.create_task(states.state()) for _ in range(2))
        await asyncio.sleep(0)
        leaving.cancel()
        cluster.gate.set()
        assert (await staying, cluster.looks) == (picture(FOUND), 1)
        with pytest.raises(asyncio.CancelledError):
            await leaving

    asyncio.run(asked())


def test_where_ray_hangs_the_answer_comes_all_the_same_and_says_so() -> None:
    cluster = Cluster()
    cluster.gate.clear()

    async def asked() -> None:
        states = KvStates(cluster.look, limit_s=0.05)
        for _ in range(2):
            said = await states.state()
            assert (said["owners"], said["complaints"]) == ([], ["Ray does not answer within 0 s"])
        assert cluster.looks == 1
        cluster.gate.set()

    asyncio.run(asked())


def test_an_error_of_rays_is_a_complaint_and_the_next_who_asks_looks_again() -> None:
    seen: list[ClusterStanding | RaySystemError] = [RaySystemError("the control process is away"), FOUND]

    def look() -> ClusterStanding:
        found = seen.pop(0)
        if isinstance(found, RaySystemError):
            raise found
        return found

    async def asked() -> None:
        states = KvStates(look)
        [complaint] = (await states.state())["complaints"]
        assert "the control process is away" in complaint
        assert await states.state() == picture(FOUND)

    asyncio.run(asked())
