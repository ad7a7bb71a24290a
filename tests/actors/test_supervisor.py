"""Causes of death, as the supervisor keeps them: brought about for real, told once, and kept beyond its own end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
import ray
from ray.exceptions import RayError

from actors.causes import cause_of
from actors.incarnations import session_path
from actors.owners import OwnerKind
from actors.records import read_log
from actors.supervisor import living_supervisor, meet_supervisor, tell_death
from kvcluster.driver.exits import watch
from kvcluster.services.chronicle import Death, Who
from tests.actors.world import TIMEOUT_S, World, eventually, has_ended, kill_and_wait


class Mortal:
    """An actor that ends however it is asked to."""

    def __init__(self, sound: bool = True) -> None:
        if not sound:
            raise OSError("it cannot begin")

    def pid(self) -> int:
        return os.getpid()

    def leave(self, code: int) -> None:
        os._exit(code)

    def leave_in_order(self) -> None:
        ray.actor.exit_actor()


def cause(end: Callable[[Any, int], object]) -> str:
    """What is said of an actor that ended so."""
    actor = ray.remote(Mortal).options(num_cpus=0).remote()
    pid = ray.get(actor.pid.remote(), timeout=TIMEOUT_S)
    watched = watch(pid)
    assert watched is not None
    try:
        end(actor, pid)
        assert has_ended(pid, TIMEOUT_S)
        with pytest.raises(RayError) as raised:
            ray.get(actor.pid.remote(), timeout=TIMEOUT_S)
        return cause_of(raised.value, ending=lambda: watched.ending_within(TIMEOUT_S))
    finally:
        watched.close()


@pytest.mark.parametrize(
    ("end", "sentence"),
    [
        (lambda actor, pid: os.kill(pid, signal.SIGKILL), "it was killed by SIGKILL"),
        (lambda actor, pid: os.kill(pid, signal.SIGTERM), "it was told to end (SIGTERM)"),
        (lambda actor, pid: actor.leave.remote(70), "it ended with exit code 70"),
        (lambda actor, pid: actor.leave_in_order.remote(), "it left by itself"),
        (lambda actor, pid: ray.kill(actor), "it was ended (ray.kill)"),
    ],
    ids=["SIGKILL", "SIGTERM", "exit code", "left", "ray.kill"],
)
def test_each_kind_of_death_has_a_sentence_of_its_own(
    node_id: str, end: Callable[[Any, int], object], sentence: str
) -> None:
    assert cause(end) == sentence


def test_an_actor_that_cannot_begin_is_told_by_what_it_raised(node_id: str) -> None:
    actor = ray.remote(Mortal).options(num_cpus=0).remote(sound=False)
    with pytest.raises(RayError) as raised:
        ray.get(actor.pid.remote(), timeout=TIMEOUT_S)
    assert cause_of(raised.value) == "OSError: it cannot begin"


def deaths_of(name: str) -> list[Death]:
    return [death for death in read_log().deaths if death.who.name == name]


def test_what_was_told_outlives_the_supervisor_and_the_next_one_goes_on(world: World) -> None:
    meet_supervisor()
    supervisor = living_supervisor()
    [name] = world.settings().device_names
    who = Who("device", name, world.node_id, 17)
    tell_death(who, "it was killed by SIGKILL")
    eventually(lambda: deaths_of(name), "the log has it")
    kill_and_wait(ray.get(supervisor.pid.remote(), timeout=TIMEOUT_S))
    assert [death.cause for death in deaths_of(name)] == ["it was killed by SIGKILL"]
    tell_death(who, "told again, by somebody else")
    tell_death(Who("device", name, world.node_id, 18), "it did not answer for more than 3 s")
    eventually(lambda: len(deaths_of(name)) == 2, "the next supervisor wrote what it was told")
    assert [death.cause for death in deaths_of(name)] == [
        "it was killed by SIGKILL",
        "it did not answer for more than 3 s",
    ]


def test_a_device_tells_its_birth_with_its_process_and_epoch(world: World) -> None:
    device = world.device(world.settings())
    birth = eventually(lambda: read_log().birth_of(OwnerKind.DEVICE, device.name, world.node_id), "it was told")
    figures = ray.get(device.actor.statistics.remote(), timeout=TIMEOUT_S)
    assert (birth.who.pid, birth.who.epoch, birth.number) == (device.address.pid, figures.epoch, 1)


def test_a_device_that_is_killed_is_in_the_log_with_the_signal_though_nobody_used_it(world: World) -> None:
    device = world.device(world.settings())
    eventually(lambda: read_log().birth_of(OwnerKind.DEVICE, device.name, world.node_id), "its birth was told")
    kill_and_wait(device.address.pid)
    [told] = eventually(lambda: [each for each in deaths_of(device.name) if each.cause], "its death was noticed")
    assert (told.who.pid, told.cause) == (device.address.pid, "it was killed by SIGKILL")


def test_the_next_supervisor_watches_whoever_was_born_before_it(world: World) -> None:
    device = world.device(world.settings())
    eventually(lambda: read_log().birth_of(OwnerKind.DEVICE, device.name, world.node_id), "its birth was told")
    kill_and_wait(ray.get(living_supervisor().pid.remote(), timeout=TIMEOUT_S))
    meet_supervisor()
    eventually(next_supervisor, "another one is there")
    kill_and_wait(device.address.pid)
    [told] = eventually(lambda: [each for each in deaths_of(device.name) if each.cause], "its death was noticed")
    assert (told.who.pid, told.cause) == (device.address.pid, "it was killed by SIGKILL")


def next_supervisor() -> int | None:
    """Its process, once it answers; the one before it was killed."""
    try:
        pid: int = ray.get(living_supervisor().pid.remote(), timeout=TIMEOUT_S)
    except RayError:
        return None
    return pid


def test_a_device_that_leaves_when_it_is_told_to_is_no_death_and_leaves_no_file(world: World) -> None:
    device = world.device(world.settings())
    eventually(lambda: read_log().birth_of(OwnerKind.DEVICE, device.name, world.node_id), "its birth was told")
    assert ray.get(device.actor.leave.remote(), timeout=TIMEOUT_S)
    ray.kill(device.actor)
    assert has_ended(device.address.pid, TIMEOUT_S)
    eventually(lambda: not read_log().birth_of(OwnerKind.DEVICE, device.name, world.node_id), "it has left")
    assert deaths_of(device.name) == []
    assert not session_path(OwnerKind.DEVICE, device.name, world.node_id).exists()


def test_nobody_is_disturbed_where_the_supervisor_hangs(world: World) -> None:
    meet_supervisor()
    pid = ray.get(living_supervisor().pid.remote(), timeout=TIMEOUT_S)
    os.kill(pid, signal.SIGSTOP)
    try:
        tell_death(Who("device", "host:none", world.node_id, 3), "told to nobody")
        device = world.device(world.settings())
        assert ray.get(device.actor.audit.remote(), timeout=TIMEOUT_S).sessions == {}
    finally:
        os.kill(pid, signal.SIGCONT)
