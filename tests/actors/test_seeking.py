"""An owner of memory that hangs, cannot begin, or dies again and again: its clients notice in seconds, and say why."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import GetTimeoutError

from actors.devices import Device, find_device, sought_device
from actors.frames import ActorSender
from actors.incarnations import session_path
from actors.owners import OwnerKind, make_owner
from actors.proxies import open_session
from actors.records import read_log
from actors.seeking import SeekOwner
from actors.supervisor import meet_supervisor
from kvcluster.attach.client import AttachClient
from kvcluster.errors import DeviceUnreachable
from kvcluster.failpoints import Failpoint
from kvcluster.geometry.layout import Layout
from kvcluster.ids import new_session
from kvcluster.services.asks import Grow
from kvcluster.services.contact import Link
from kvcluster.services.sequence import SequenceSpec
from kvcluster.testing.arming import marks_in
from tests.actors.client import GEOMETRY
from tests.actors.world import GRANULE, TIMEOUT_S, World, armed_with, audit, eventually, has_ended, kill_and_wait

LEASE_S, SHORT_S = 1.0, 0.2
NEVER = threading.Event()


def seeker(device: Device, lease_s: float = LEASE_S) -> SeekOwner:
    """As a session of the device has it."""
    return SeekOwner(device.sought, Path(device.address.file), lease_s)


@contextmanager
def found(owner: SeekOwner, epoch: int) -> Iterator[Link[AttachClient]]:
    def opened(actor: Any, attach: AttachClient) -> AttachClient:
        return attach

    link = owner.next_one(epoch, new_session(), opened, NEVER)
    yield link
    link.way.close()


def test_a_device_that_hangs_is_ended_after_a_lease_and_its_client_goes_on_with_the_next(world: World) -> None:
    settings = world.settings(lease_s=LEASE_S, heartbeat_s=0.2)
    device, port = world.device(settings), open_session(*settings.device_names, world.node_id, settings)
    memory = port.memory(SequenceSpec(GEOMETRY, Layout.TOKEN_MAJOR, 64))
    memory.commit(16, memory.grant(16))
    meet_supervisor()
    os.kill(device.address.pid, signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(DeviceUnreachable, match="no reply within 1 s"):
        memory.grant(32)
    assert has_ended(device.address.pid, TIMEOUT_S)
    eventually(port.in_touch, "the next one is found")
    memory.commit(32, memory.grant(32))
    assert time.monotonic() - began < 20
    assert audit(world.device(settings)).accounts["free"] == 62 * GRANULE
    memory.close()
    port.close()
    [death] = eventually(lambda: [each for each in read_log().deaths if each.who.name == device.name], "it is told")
    assert death.cause == "it did not answer for more than 1 s"


def test_a_client_of_a_short_lease_ends_no_device_that_is_at_one_frame(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device's lease is the first job's, and long; a frame that takes longer than the second's is no hang."""
    monkeypatch.setattr("actors.seeking.KNOCK_S", SHORT_S)
    settings = world.settings(heartbeat_s=SHORT_S / 4)  # each waits for the frame, and whoever knocks for it
    device = world.device(settings)
    impatient = settings.model_copy(update={"lease_s": SHORT_S, "heartbeat_s": SHORT_S / 2})
    port = open_session(device.name, world.node_id, impatient)
    memory = port.memory(SequenceSpec(GEOMETRY, Layout.TOKEN_MAJOR, 64))
    grant = memory.grant(16)
    ray.get(device.actor.arm.remote(f"{Failpoint.DEVICE_TAKEN}=delay:{5 * SHORT_S}"), timeout=TIMEOUT_S)
    memory.commit(16, grant)
    assert world.device(settings).address.pid == device.address.pid
    memory.close()
    port.close()


def test_a_device_that_hangs_before_it_hands_over_what_it_granted_is_ended_after_a_lease_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.seeking.KNOCK_S", SHORT_S)
    settings = world.settings(lease_s=LEASE_S, heartbeat_s=0.2)
    device, port = world.device(settings), open_session(*settings.device_names, world.node_id, settings)
    memory = port.memory(SequenceSpec(GEOMETRY, Layout.TOKEN_MAJOR, 64))
    hands_over_later = f"{Failpoint.OWNER_HANDING}=delay:{TIMEOUT_S}"
    ray.get(device.actor.arm.remote(hands_over_later), timeout=TIMEOUT_S)
    pending = port.submit([Grow(memory, 16)])
    eventually(pending.ready, "it is granted and committed")
    os.kill(device.address.pid, signal.SIGSTOP)
    began = time.monotonic()
    [outcome] = pending.settle()
    assert time.monotonic() - began < 20
    assert isinstance(outcome.error, DeviceUnreachable)
    assert "it is not awake" in str(outcome.error)
    assert has_ended(device.address.pid, TIMEOUT_S)
    eventually(port.in_touch, "the next one is found")
    memory.commit(16, memory.grant(16))
    memory.close()
    port.close()


class Slow:
    """An actor that replies late."""

    def frame(self, data: bytes) -> bytes:
        threading.Event().wait(5 * SHORT_S)
        return data


def test_a_device_whose_replies_are_late_and_that_is_awake_is_waited_for(world: World) -> None:
    settings = world.settings(lease_s=SHORT_S, heartbeat_s=SHORT_S / 2)
    device = world.device(settings)
    owner = seeker(device)
    with found(owner, 0) as link:
        reply = ActorSender(world.started(Slow, num_cpus=0), link.way, owner).send(b"late")
        assert reply.result(TIMEOUT_S) == b"late"
    assert audit(device).epoch == link.welcome.epoch


def test_a_device_that_is_awake_and_does_not_reply_is_waited_for_as_long_as_was_said_and_then_ended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = world.settings(lease_s=25.0)
    device, waits = world.device(settings), []

    def get(reference: Any, timeout: float) -> bytes:
        waits.append(timeout)
        raise GetTimeoutError

    owner = seeker(device)
    with found(owner, 0) as link:
        reply = ActorSender(world.started(Slow, num_cpus=0), link.way, owner).send(b"late")
        monkeypatch.setattr("actors.frames.ray", SimpleNamespace(get=get))
        with pytest.raises(DeviceUnreachable, match="no reply within 60 s"):
            reply.result(60.0)
        monkeypatch.undo()
    assert max(waits) <= 25
    assert sum(waits) == pytest.approx(60)
    assert has_ended(device.address.pid, TIMEOUT_S)


def test_a_device_that_hangs_while_it_is_sought_is_ended_by_who_seeks_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.seeking.KNOCK_S", SHORT_S)
    device = world.device(world.settings())
    epoch = audit(device).epoch
    os.kill(device.address.pid, signal.SIGSTOP)
    with found(seeker(device, SHORT_S), epoch) as link:
        assert link.welcome.epoch > epoch
    assert has_ended(device.address.pid, TIMEOUT_S)


def test_a_device_that_hangs_before_it_listens_is_ended_by_who_seeks_it(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.seeking.STUCK_S", 2.0)
    here, marks = tmp_path / "here", tmp_path / "marks"
    marks.mkdir()
    settings = world.settings()
    [name] = settings.device_names
    sought = sought_device(name, world.node_id, settings)
    env = armed_with(f"{Failpoint.OWNER_OPENED}=hang:{here}; marks={marks}")
    make_owner(sought, env=env)
    eventually(here.exists, "it has begun, and listens nowhere")
    [[pid]] = marks_in(marks).values()
    with found(SeekOwner(sought, session_path(OwnerKind.DEVICE, name, world.node_id), LEASE_S), 0) as link:
        assert link.welcome.device == name
    assert has_ended(pid, TIMEOUT_S)


def test_what_never_comes_is_given_up_with_how_long_it_was_sought(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.seeking.GIVE_UP_S", SHORT_S)
    settings = world.settings()
    sought = sought_device(*settings.device_names, world.node_id, settings)
    with (
        pytest.raises(DeviceUnreachable, match=r"no other process of it came within 0 s$"),
        found(SeekOwner(sought, tmp_path / "no file", LEASE_S), 1),
    ):
        raise AssertionError("it was found")


def test_a_device_that_cannot_begin_again_is_given_up_with_what_it_said(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.seeking.MAKE_AGAIN_S", 0.1)
    monkeypatch.setattr("actors.seeking.MOST_BEGINNINGS", 2)
    settings = world.settings()
    device = world.device(settings)
    epoch, path = audit(device).epoch, Path(device.address.file)
    path.unlink()
    path.symlink_to(tmp_path)  # its file cannot be made
    try:
        kill_and_wait(device.address.pid)
        with (
            pytest.raises(DeviceUnreachable, match=r"it cannot begin: .*symbolic links"),
            found(seeker(device), epoch),
        ):
            raise AssertionError("it was found")
    finally:
        path.unlink()


def test_a_device_that_dies_again_and_again_as_soon_as_it_was_found_is_given_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.seeking.MOST_SHORT_LIVES", 1)
    settings = world.settings()
    device = world.device(settings)
    owner = seeker(device)
    kill_and_wait(device.address.pid)
    with found(owner, audit_epoch := 1) as link:
        assert link.welcome.epoch != audit_epoch
    kill_and_wait(find_device(device.name, world.node_id, settings).address.pid)
    with pytest.raises(DeviceUnreachable, match="it died 1 times"), found(owner, link.welcome.epoch):
        raise AssertionError("it was found")
