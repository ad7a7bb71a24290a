"""A client's way to a device actor: frames through Ray, descriptors through the attach socket.

A call whose reply is late or lost may have run; it surfaces as DeviceUnreachable and nothing is sent twice here.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError

from actors.device import DeviceAddress
from kvcluster.attach.client import AttachClient, open_attach_client
from kvcluster.driver.host import open_host_driver
from kvcluster.driver.protocol import Driver, PhysicalHandle
from kvcluster.errors import DeviceUnreachable, DriverError
from kvcluster.ids import new_session
from kvcluster.services.port import DevicePort

HELLO_TIMEOUT_S = 10.0


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
        except RayActorError as error:
            raise DeviceUnreachable(device=self.device, reason=str(error).splitlines()[0]) from None
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
        descriptors = self._attach.redeem(seq)
        with ExitStack() as received, ExitStack() as imported:
            for fd in descriptors.fds:
                received.callback(os.close, fd)
            handles = []
            for fd, size_bytes in zip(descriptors.fds, descriptors.handle_bytes, strict=True):
                handles.append(self._driver.import_fd(fd, size_bytes))
                imported.callback(self._drop, handles[-1])
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
