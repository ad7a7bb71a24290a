"""A client's way to a device actor: frames through Ray (`actors.frames`), descriptors through the attach socket.

A device that is gone surfaces as DeviceUnreachable, and is sought (`SeekDevice`).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.backends import open_client_driver
from actors.devices import Device, find_device
from actors.finding import PATIENCE_S, session_with
from actors.frames import ActorSender
from actors.seeking import HELLO_TIMEOUT_S, SeekOwner
from kvcluster.attach.client import AttachClient, open_attach_client
from kvcluster.config import Settings
from kvcluster.driver.protocol import Driver, PhysicalHandle
from kvcluster.ids import new_session
from kvcluster.services.contact import Link
from kvcluster.services.imports import Imports
from kvcluster.services.own_page import page_memory
from kvcluster.services.port import DevicePort
from kvcluster.services.progress_page import Memory, ProgressPage
from kvcluster.services.transport import Transport
from kvcluster.wire.socket import Reclaim


class ActorTransport(ActorSender):
    """To a device: its descriptors become handles of this process's own `driver`."""

    def __init__(
        self, actor: Any, attach: AttachClient, owner: SeekOwner, *, driver: Driver, page: Memory | None
    ) -> None:
        super().__init__(actor, attach, owner)
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
            return ActorTransport(actor, attach, self.owner, driver=self.driver, page=page_memory(attach))

        return self.owner.next_one(epoch, session, opened, stopping)


def open_port(device: Device) -> DevicePort:
    """A session of this process with `device`, which is sought when it dies, and made again where it ended.

    Raises:
        DeviceUnreachable: nobody answers at its socket. Nothing stays open.
        DeviceMissing, DriverError: this process cannot use the device's memory. Nothing stays open.
    """
    session, address = new_session(), device.address
    with ExitStack() as undo:
        driver = open_client_driver(address)
        undo.callback(driver.close)
        attach = open_attach_client(address.attach, session, timeout_s=HELLO_TIMEOUT_S)
        undo.callback(attach.close)
        owner = SeekOwner(device.sought, Path(address.file), attach.welcome.lease_s)
        owner.watch(attach)
        page = page_memory(attach)
        undo.pop_all()
    transport = ActorTransport(device.actor, attach, owner, driver=driver, page=page)
    port = DevicePort(session, attach.welcome, driver, transport, seek=SeekDevice(owner, driver))
    port.progress = ProgressPage(page)
    return port


def open_session(name: str, node_id: str, settings: Settings) -> DevicePort:
    """A session of this process with the device `name`, which is made now where there is none.

    Raises:
        ConfigError, DeviceUnreachable, DeviceMissing, DriverError: as `find_device`. Nothing stays open.
    """
    return session_with(lambda: find_device(name, node_id, settings, patience_s=PATIENCE_S), open_port)
