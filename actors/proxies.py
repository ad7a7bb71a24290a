"""A client's way to a device actor: frames through Ray, descriptors through the attach socket.

A call whose reply is late or lost may have run; it surfaces as DeviceUnreachable and nothing is sent twice here.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from actors.device import DeviceAddress
from actors.devices import find_device, reason_of
from kvcluster.attach.client import AttachClient, open_attach_client
from kvcluster.config import Settings
from kvcluster.driver.host import open_host_driver
from kvcluster.driver.protocol import Driver, PhysicalHandle
from kvcluster.errors import DeviceUnreachable, DriverError
from kvcluster.ids import new_session
from kvcluster.services.port import DevicePort

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


class ActorTransport:
    """Frames to `actor`, and its descriptors as handles of this process's own `driver`."""

    def __init__(self, actor: Any, attach: AttachClient, driver: Driver) -> None:
        self._actor = actor
        self._attach = attach
        self._driver = driver
        self._kept: list[PhysicalHandle] = []

    def send(self, frame: bytes) -> _RayReply:
        return _RayReply(self._attach.welcome.device, self._actor.frame.remote(frame))

    def redeem(self, seq: int) -> Sequence[PhysicalHandle]:
        handles: list[PhysicalHandle] = []
        with ExitStack() as imported:

            def take(fd: int, size_bytes: int) -> None:
                handles.append(self._driver.import_fd(fd, size_bytes))
                imported.callback(self._drop, handles[-1])

            self._attach.redeem(seq, take)
            imported.pop_all()
        return handles

    def settled(self, handles: Sequence[PhysicalHandle]) -> None:
        for handle in handles:
            self._drop(handle)

    def _drop(self, handle: PhysicalHandle) -> None:
        try:
            self._driver.release(handle)
        except DriverError:  # a descriptor of ours that would not close; it costs a descriptor and no memory
            self._kept.append(handle)

    def close(self) -> None:
        self._attach.close()


def open_port(actor: Any, address: DeviceAddress) -> DevicePort:
    """A session of this process with the device behind `actor`.

    Raises:
        DeviceUnreachable: nobody answers at its socket. Nothing stays open.
    """
    session = new_session()
    attach = open_attach_client(address.attach, session, timeout_s=HELLO_TIMEOUT_S)
    driver = open_host_driver(granule_bytes=address.granule_bytes, capacity_bytes=address.capacity_bytes)
    return DevicePort(session, attach.welcome, driver, ActorTransport(actor, attach, driver))


def open_session(name: str, node_id: str, settings: Settings) -> DevicePort:
    """A session of this process with the device `name`, which is made now where there is none.

    Raises:
        ConfigError, DeviceUnreachable: as `find_device`. Nothing stays open.
    """
    reason = ""
    for _ in range(SESSION_ATTEMPTS):
        device = find_device(name, node_id, settings)
        try:
            return open_port(device.actor, device.address)
        except DeviceUnreachable as left:  # idle, between the two lines above
            reason = left.reason
    raise DeviceUnreachable(device=name, reason=reason)
