"""A request actor is killed with SIGKILL anywhere in a commit, and the other one notices nothing.

Each test proves that its point was reached: the armed process makes a file there and waits until the file is gone.
After that it is killed, still at that point. The device is small, so that the survivor needs what the victim had; it
is the same for all tests, and each finds it with nobody at it, and whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from actors.devices import Device
from actors.request import RequestActor
from actors.spec import WorkerSpec
from kvcluster.config import Settings
from kvcluster.failpoints import Failpoint
from tests.actors.answers import requests
from tests.actors.world import (
    CAPACITY,
    GRANULE,
    TIMEOUT_S,
    World,
    audit,
    eventually,
    has_ended,
    is_whole,
    kill_and_wait,
)

CLIENT_POINTS = [point for point in Failpoint if point.startswith(("client.commit", "client.release"))]
DEVICE_POINTS = [point for point in Failpoint if point.startswith(("device.commit", "device.frame", "device.release"))]
VICTIM_GRANULES = 48


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The file that says that the point was reached."""
    return tmp_path / "reached"


def told(reference: Any) -> Any:
    return ray.get(reference, timeout=TIMEOUT_S)


@pytest.fixture(scope="module")
def settings(node_id: str, folder: Path) -> Iterator[Settings]:
    """Those of the one device, which is there as long."""
    world = World(node_id, itertools.count(4_000))
    yield world.settings(model=str(folder))
    world.close()


@pytest.fixture
def device(world: World, settings: Settings) -> Iterator[Device]:
    device = world.device(settings)
    yield device
    told(device.actor.arm.remote(""))
    eventually(lambda: is_whole(device.actor), "nobody is at the device, and nothing is charged to anybody")


def unclaimed_bytes(device: Device) -> int:
    """What is nobody's: free, or only kept in case that somebody finds it."""
    figures = audit(device)
    return figures.free_bytes + figures.retained_bytes


class Survivors:
    """The other actor at one device, and what it says in the end."""

    def __init__(self, actor: Any, device: Device, wanted: list[str]) -> None:
        self._actor, self._wanted, self._device = actor, wanted, device
        self._session = told(actor.attach.remote(device))
        self._answer: Any = None

    def begin(self) -> None:
        self._answer = self._actor.answer.remote()

    def finishes_undisturbed(self) -> None:
        """Its text is that of an undisturbed run, and then every byte is free and no other session is left."""
        assert told(self._answer) == self._wanted
        figures = eventually(self._all_free, "every byte is free and the victim's session is gone")
        assert set(figures.sessions) == {self._session}
        assert figures.open_requests == 0

    def _all_free(self) -> Any:
        figures = audit(self._device)
        return (
            figures if figures.free_bytes + figures.retained_bytes == CAPACITY and len(figures.sessions) == 1 else None
        )


@pytest.fixture
def other(device: Device, survivor: Any, wanted: list[str]) -> Iterator[Survivors]:
    yield Survivors(survivor, device, wanted)
    told(survivor.leave.remote())


@pytest.mark.parametrize("point", CLIENT_POINTS)
def test_a_client_killed_at_any_of_its_points_leaves_no_byte_and_the_other_finishes(
    world: World, device: Device, other: Survivors, here: Path, point: Failpoint
) -> None:
    victim = world.client(device, failpoints=f"{point}=hang:{here};{point}=kill")
    pid, session = told(victim.session.remote())
    victim.commit.remote(VICTIM_GRANULES)
    victim.release.remote()
    eventually(here.exists, f"{point} is reached")
    assert audit(device).sessions[session] == "live"
    assert unclaimed_bytes(device) == CAPACITY - GRANULE * charged_at(point)
    other.begin()
    here.unlink()
    assert has_ended(pid, TIMEOUT_S)
    other.finishes_undisturbed()


def charged_at(point: Failpoint) -> int:
    """Granules of the victim's that the device has charged when the victim is at `point` for the first time."""
    return 0 if point is Failpoint.CLIENT_ASK else VICTIM_GRANULES


@pytest.mark.parametrize("point", DEVICE_POINTS)
def test_a_client_killed_while_the_device_is_at_any_of_its_points_leaves_no_byte_and_the_other_finishes(
    world: World, device: Device, other: Survivors, here: Path, point: Failpoint
) -> None:
    victim = world.client(device)
    pid, _ = told(victim.session.remote())
    told(device.actor.arm.remote(f"{point}=hang:{here}"))
    victim.commit.remote(VICTIM_GRANULES)
    victim.release.remote()
    eventually(here.exists, f"{point} is reached")
    other.begin()
    kill_and_wait(pid)
    here.unlink()
    other.finishes_undisturbed()


def test_a_whole_request_actor_killed_in_the_middle_leaves_no_byte_and_the_other_finishes(
    world: World, settings: Settings, device: Device, other: Survivors, here: Path, folder: Path
) -> None:
    """In a release; one killed in a commit is a case of `tests/chaos/test_slice.py`, and a model is loaded for each."""
    point = Failpoint.CLIENT_UNMAPPED
    spec = WorkerSpec(str(folder), settings, device.name, world.node_id)
    victim = world.started(RequestActor, spec, failpoints=f"{point}=hang:{here};{point}=kill", max_concurrency=4)
    pid = told(victim.open.remote()).pid
    told(victim.submit.remote(requests()))
    eventually(here.exists, f"{point} is reached")
    other.begin()
    here.unlink()
    assert has_ended(pid, TIMEOUT_S)
    other.finishes_undisturbed()


def test_a_client_that_is_armed_beyond_its_last_passage_lives(world: World, device: Device) -> None:
    client = world.client(device, failpoints=";".join(f"{point}=kill@1000" for point in CLIENT_POINTS))
    told(client.commit.remote(VICTIM_GRANULES))
    told(client.release.remote())
    assert unclaimed_bytes(device) == CAPACITY
    told(client.close.remote())
