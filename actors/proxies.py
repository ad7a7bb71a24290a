"""A client's way to a device actor: frames through Ray, descriptors through the attach socket.

A call whose reply is lost may have run. While the socket says that the device lives the same bytes are sent again: it
answers them as it did, or executes them now, and never twice. A device that is gone surfaces as DeviceUnreachable, and
is sought (`SeekDevice`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from actors.backends import open_client_driver
from actors.device_spec import DeviceAddress
from actors.devices import Device, find_device, sought_device
from actors.incarnations import HELLO_TIMEOUT_S, SeekOwner
from actors.owners import OwnerKind, make_owner, reason_of
from kvcluster.attach.client import AttachClient, open_attach_client
from kvcluster.config import Settings
from kvcluster.driver.protocol import Driver, PhysicalHandle
from kvcluster.errors import DeviceUnreachable
from kvcluster.failpoints import Failpoint, ReplyLost, reach
from kvcluster.ids import new_session
from kvcluster.services.contact import Link
from kvcluster.services.imports import Imports
from kvcluster.services.own_page import page_memory
from kvcluster.services.port import DevicePort
from kvcluster.services.progress_page import Memory, ProgressPage
from kvcluster.services.transport import Transport
from kvcluster.wire.socket import Reclaim

F = TypeVar("F")
P = TypeVar("P")

SESSION_ATTEMPTS = 3
AGAIN_S = 0.005  # before a frame is sent again whose reply was lost


class _RayReply:
    """The reply to a frame, and the frame, for as long as there is none."""

    def __init__(self, actor: Any, frame: bytes, attach: AttachClient) -> None:
        self.reference = actor.frame.remote(frame)
        self._actor = actor
        self._frame = frame
        self._attach = attach

    def ready(self) -> bool:
        return bool(ray.wait([self.reference], timeout=0)[0])

    def result(self, timeout_s: float) -> bytes:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                data: bytes = ray.get(self.reference, timeout=max(0.0, deadline - time.monotonic()))
                reach(Failpoint.CLIENT_REPLY)
                return data
            except GetTimeoutError:
                raise self._unreachable(f"no reply within {timeout_s:.0f} s") from None
            except RayTaskError:  # what the device raised: BadFrame, or a bug
                raise
            except (RayError, ReplyLost) as error:
                if not self._attach.alive:
                    raise self._unreachable(reason_of(error)) from None
            time.sleep(AGAIN_S)
            self.reference = self._actor.frame.remote(self._frame)

    def _unreachable(self, reason: str) -> DeviceUnreachable:
        return DeviceUnreachable(device=self._attach.welcome.device, reason=reason)


class ActorSender:
    """Frames to `actor`, an owner of memory that hands over nothing, or has done so."""

    def __init__(self, actor: Any, attach: AttachClient) -> None:
        self._actor = actor
        self._attach = attach

    def send(self, frame: bytes) -> _RayReply:
        return _RayReply(self._actor, frame, self._attach)

    def pushes(self) -> tuple[Reclaim, ...]:
        return tuple(push for push in self._attach.pushes() if isinstance(push, Reclaim))

    @property
    def is_open(self) -> bool:
        return self._attach.alive

    @property
    def is_fenced(self) -> bool:
        return self._attach.is_fenced

    def surrender(self) -> None:
        self._attach.surrender()

    def close(self) -> None:
        self._attach.close()


class ActorTransport(ActorSender):
    """To a device: its descriptors become handles of this process's own `driver`."""

    def __init__(self, actor: Any, attach: AttachClient, driver: Driver, page: Memory | None) -> None:
        super().__init__(actor, attach)
        self.page = page
        self._imports = Imports(attach, driver)

    def redeem(self, seq: int) -> Sequence[PhysicalHandle]:
        return self._imports.redeem(seq)

    def settled(self, handles: Sequence[PhysicalHandle]) -> None:
        self._imports.settled(handles)

    def hold(self, handles: Sequence[PhysicalHandle]) -> None:
        self._imports.hold(handles)

    def let_go(self, handles: Sequence[PhysicalHandle]) -> None:
        self._imports.let_go(handles)

    def pushes(self) -> tuple[Reclaim, ...]:
        return self._imports.pushes()

    def surrender(self) -> None:
        """What is imported would hold memory that is free from then on: it is dropped first."""
        self._imports.close()
        super().surrender()

    def close(self) -> None:
        self._imports.close()
        super().close()


@dataclass(frozen=True, slots=True)
class SeekDevice:
    """Finds the next incarnation of a device for a client whose `driver` goes on: a `services.contact.Seek`."""

    owner: SeekOwner
    driver: Driver

    def __call__(self, session: str, epoch: int, *, stopping: threading.Event) -> Link[Transport]:
        def opened(actor: Any, attach: AttachClient) -> Transport:
            return ActorTransport(actor, attach, self.driver, page_memory(attach))

        return self.owner.next_one(epoch, session, opened, stopping)


def open_port(actor: Any, address: DeviceAddress, owner: SeekOwner | None = None) -> DevicePort:
    """A session of this process with the device behind `actor`, which is sought when it dies, by `owner`'s rules.

    Raises:
        DeviceUnreachable: nobody answers at its socket. Nothing stays open.
        DeviceMissing, DriverError: this process cannot use the device's memory. Nothing stays open.
    """
    session = new_session()
    with ExitStack() as undo:
        driver = open_client_driver(address)
        undo.callback(driver.close)
        attach = open_attach_client(address.attach, session, timeout_s=HELLO_TIMEOUT_S)
        undo.callback(attach.close)
        page = page_memory(attach)
        undo.pop_all()
    seek = SeekDevice(owner, driver) if owner else None
    port = DevicePort(session, attach.welcome, driver, ActorTransport(actor, attach, driver, page), seek=seek)
    port.progress = ProgressPage(page)
    return port


def open_session(name: str, node_id: str, settings: Settings) -> DevicePort:
    """A session of this process with the device `name`, which is made now where there is none.

    Raises:
        ConfigError, DeviceUnreachable, DeviceMissing, DriverError: as `find_device`. Nothing stays open.
    """

    sought = sought_device(name, node_id, settings)

    def opened(device: Device) -> DevicePort:
        path = Path(device.address.file)
        owner = SeekOwner(OwnerKind.DEVICE, name, node_id, path, lambda: make_owner(sought), settings.lease_s)
        return open_port(device.actor, device.address, owner)

    return session_with(lambda: find_device(name, node_id, settings), opened)


def session_with(find: Callable[[], F], open_one: Callable[[F], P]) -> P:
    """What `open_one` opens with the owner of memory that `find` finds; again where that left, idle, in between.

    Raises:
        Whatever the two raise.
    """
    for _ in range(SESSION_ATTEMPTS - 1):
        found = find()
        try:
            return open_one(found)
        except DeviceUnreachable:
            continue
    return open_one(find())
