"""An owner of memory that hangs, cannot begin, or dies again and again: its clients notice in seconds, and say why."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from actors.devices import find_device, sought_device
from actors.frames import ActorSender
from actors.owners import OwnerKind, make_owner
from actors.proxies import open_session
from actors.records import read_log
from actors.seeking import SeekOwner
from actors.supervisor import meet_supervisor
from kvcluster.attach.client import AttachClient
from kvcluster.config import Settings
from kvcluster.errors import DeviceUnreachable
from kvcluster.geometry.layout import Layout
from kvcluster.ids import new_session
from kvcluster.services.contact import Link
from kvcluster.services.sequence import SequenceSpec
from tests.actors.client import GEOMETRY
from tests.actors.world import GRANULE, TIMEOUT_S, World, audit, eventually, has_ended, kill_and_wait

LEASE_S, SHORT_S = 1.0, 0.2
NEVER = threading.Event()


def seeker(settings: Settings, node_id: str, path: str) -> SeekOwner:
    """As a session of a device has it."""
    [name] = settings.device_names
    sought = sought_device(name, node_id, settings)
    return SeekOwner(OwnerKind.DEVICE, name, node_id, Path(path), lambda: make_owner(sought), settings.lease_s)


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


class Slow:
    """An actor that replies late."""

    def frame(self, data: bytes) -> bytes:
        threading.Event().wait(5 * SHORT_S)
        return data


def test_a_device_whose_replies_are_late_and_that_is_awake_is_waited_for(world: World) -> None:
    settings = world.settings(lease_s=SHORT_S, heartbeat_s=SHORT_S / 2)
    device = world.device(settings)
    owner = seeker(settings, world.node_id, device.address.file)
    with found(owner, 0) as link:
        reply = ActorSender(world.started(Slow, num_cpus=0), link.way, owner).send(b"late")
        assert reply.result(TIMEOUT_S) == b"late"
    assert audit(device).epoch == link.welcome.epoch


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
            found(seeker(settings, world.node_id, device.address.file), epoch),
        ):
            raise AssertionError("it was found")
    finally:
        path.unlink()


def test_a_device_that_dies_again_and_again_as_soon_as_it_was_found_is_given_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.seeking.MOST_FLAPS", 1)
    settings = world.settings()
    device = world.device(settings)
    owner = seeker(settings, world.node_id, device.address.file)
    kill_and_wait(device.address.pid)
    with found(owner, audit_epoch := 1) as link:
        assert link.welcome.epoch != audit_epoch
    kill_and_wait(find_device(device.name, world.node_id, settings).address.pid)
    with pytest.raises(DeviceUnreachable, match="it died 1 times"), found(owner, link.welcome.epoch):
        raise AssertionError("it was found")
