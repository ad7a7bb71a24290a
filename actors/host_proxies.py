"""A client's way to host pages: frames through Ray (`actors.frames`), their memory by one descriptor of the socket.

A module of its own, beside `actors.proxies`, because pages are tensors: whoever has a device alone never loads torch.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.finding import PATIENCE_S, session_with
from actors.frames import ActorSender
from actors.hosts import Host, find_host
from actors.seeking import HELLO_TIMEOUT_S, SeekOwner
from kvcluster.attach.client import AttachClient, open_attach_client
from kvcluster.attach.protocol import HandedHandle
from kvcluster.config import Settings
from kvcluster.driver.linux import duplicate
from kvcluster.engine.dtypes import dtype_named
from kvcluster.errors import DeviceUnreachable
from kvcluster.geometry.model import KvGeometry
from kvcluster.ids import new_session
from kvcluster.paged.store import PageStore, attach_store
from kvcluster.services.contact import Link
from kvcluster.services.pages.port import PagePort, Pages


def open_page_port(host: Host) -> PagePort:
    """A session of this process with these pages, all mapped for reading. When they die, others are sought.

    Raises:
        DeviceUnreachable: nobody answers at the socket, or what came is no such memory. Nothing stays open.
        LimitReached, DriverError: this process cannot map them. Nothing stays open.
    """
    session = new_session()
    with ExitStack() as undo:
        attach = open_attach_client(host.address.attach, session, timeout_s=HELLO_TIMEOUT_S)
        undo.callback(attach.close)
        owner = SeekOwner(host.sought, Path(host.address.file), attach.welcome.lease_s)
        owner.watch(attach)
        store = _mapped(attach, host)
        undo.pop_all()
    sender = ActorSender(host.actor, attach, owner)
    return PagePort(session, attach.welcome, store, sender, seek=SeekPages(owner, host))


@dataclass(frozen=True, slots=True)
class SeekPages:
    """Finds the next incarnation of a host actor, and maps its memory: a `services.contact.Seek`."""

    owner: SeekOwner
    host: Host

    def __call__(self, session: str, epoch: int, *, stopping: threading.Event) -> Link[Pages]:
        def opened(actor: Any, attach: AttachClient) -> Pages:
            return Pages(ActorSender(actor, attach, self.owner), _mapped(attach, self.host))

        return self.owner.next_one(epoch, session, opened, stopping)


def open_page_session(geometry: KvGeometry, node_id: str, settings: Settings) -> PagePort:
    """A session with the node's pages for a model of this geometry, which are made now where there are none.

    Raises:
        ConfigError, DeviceUnreachable: as `find_host`. Nothing stays open.
        LimitReached, DriverError: as `open_page_port`. Nothing stays open.
    """
    return session_with(lambda: find_host(geometry, node_id, settings, patience_s=PATIENCE_S), open_page_port)


def _mapped(attach: AttachClient, host: Host) -> PageStore:
    descriptors: list[int] = []

    def take(handed: HandedHandle) -> None:
        if handed.fd is not None:
            descriptors.append(duplicate(handed.fd))

    attach.redeem(1, take)  # whatever frame is named, it is the pool
    [descriptor] = descriptors
    try:
        return attach_store(descriptor, host.spec.shape, attach.welcome.blocks, dtype_named(host.spec.dtype))
    except ValueError as wrong:  # it is closed
        raise DeviceUnreachable(device=attach.welcome.device, reason=str(wrong)) from None
