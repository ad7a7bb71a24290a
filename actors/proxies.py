"""A client's way to a device actor: frames through Ray, descriptors through the attach socket.

A call whose reply is late or lost may have run; it surfaces as DeviceUnreachable and nothing is sent twice here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from actors.backends import open_client_driver
from actors.device_spec import DeviceAddress
from actors.devices import Device, find_device
from actors.owners import reason_of
from kvcluster.attach.client import AttachClient, open_attach_client
from kvcluster.config import Settings
from kvcluster.driver.protocol import Driver, PhysicalHandle
from kvcluster.errors import DeviceUnreachable
from kvcluster.ids import new_session
from kvcluster.services.imports import Imports
from kvcluster.services.port import DevicePort
from kvcluster.wire.socket import Reclaim

F = TypeVar("F")
P = TypeVar("P")

HELLO_TIMEOUT_S = 10.0
SESSION_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class _RayReply:
    device: str
    reference: Any

    def ready(self) -> bool:
        return bool(ray.wait([self.reference], timeout=0)[0])

    def result(self, timeout_s: float) -> bytes:
        try:
            data: bytes = ray.get(self.reference, timeout=timeout_s)
        except GetTimeoutError:
            raise DeviceUnreachable(device=self.device, reason=f"no reply within {timeout_s:.0f} s") from None
        except RayTaskError:  # what the device raised: BadFrame, or a bug
            raise
        except RayError as error:
            raise DeviceUnreachable(device=self.device, reason=reason_of(error)) from None
        return data


class ActorSender:
    """Frames to `actor`, an owner of memory that hands over nothing, or has done so."""

    def __init__(self, actor: Any, attach: AttachClient) -> None:
        self._actor = actor
        self._attach = attach

    def send(self, frame: bytes) -> _RayReply:
        return _RayReply(self._attach.welcome.device, self._actor.frame.remote(frame))

    def pushes(self) -> tuple[Reclaim, ...]:
        return tuple(push for push in self._attach.pushes() if isinstance(push, Reclaim))

    def close(self) -> None:
        self._attach.close()


class ActorTransport(ActorSender):
    """To a device: its descriptors become handles of this process's own `driver`."""

    def __init__(self, actor: Any, attach: AttachClient, driver: Driver) -> None:
        super().__init__(actor, attach)
        self._imports = Imports(attach, driver)

    def redeem(self, seq: int) -> Sequence[PhysicalHandle]:
        return self._imports.redeem(seq)

    def settled(self, handles: Sequence[PhysicalHandle]) -> None:
        self._imports.settled(handles)

    def pushes(self) -> tuple[Reclaim, ...]:
        return self._imports.pushes()

    def close(self) -> None:
        self._imports.close()
        super().close()


def open_port(actor: Any, address: DeviceAddress) -> DevicePort:
    """A session of this process with the device behind `actor`.

    Raises:
        DeviceUnreachable: nobody answers at its socket. Nothing stays open.
        DeviceMissing, DriverError: this process cannot use the device's memory. Nothing stays open.
    """
    session = new_session()
    with ExitStack() as undo:
        driver = open_client_driver(address)
        undo.callback(driver.close)
        attach = open_attach_client(address.attach, session, timeout_s=HELLO_TIMEOUT_S)
        undo.pop_all()
    return DevicePort(session, attach.welcome, driver, ActorTransport(actor, attach, driver))


def open_session(name: str, node_id: str, settings: Settings) -> DevicePort:
    """A session of this process with the device `name`, which is made now where there is none.

    Raises:
        ConfigError, DeviceUnreachable, DeviceMissing, DriverError: as `find_device`. Nothing stays open.
    """

    def opened(device: Device) -> DevicePort:
        return open_port(device.actor, device.address)

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
