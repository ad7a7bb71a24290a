"""A device and a worker in processes of their own, each allowed exactly the descriptors that it is said to need.

Run as `python -m tests.actors.full_device device ADDRESS GRANULES ROOM`, and the same with `worker`, which fills the
device, and prints what it found. Frames go through a socket at ADDRESS in Ray's place; all else is the actors' own.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import sys
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

from actors.owners import OwnerKind, Sought
from actors.proxies import ActorTransport
from actors.seeking import SeekOwner
from kvcluster.attach.client import open_attach_client
from kvcluster.attach.server import open_attach_server
from kvcluster.config import ConfigError, Settings, settings_from
from kvcluster.driver.host import open_host_driver
from kvcluster.driver.limits import SPARE_DESCRIPTORS, descriptor_room, mapping_room
from kvcluster.geometry.layout import Layout
from kvcluster.geometry.model import KvGeometry
from kvcluster.geometry.residency import Shape
from kvcluster.ids import new_session
from kvcluster.services.device import DeviceService, DeviceSettings
from kvcluster.services.device_memory import MemorySettings
from kvcluster.services.memory_check import check_device, check_memory
from kvcluster.services.port import DevicePort
from kvcluster.services.sequence import SequenceMemory, SequenceSpec

PAGE = mmap.PAGESIZE
TOKEN = KvGeometry.uniform(layers=1, kv_heads=1, head_dim=PAGE // 8, element_bytes=4)  # a granule a token
TIMEOUT_S = 30.0
OWNER = SeekOwner(Sought(OwnerKind.DEVICE, "host:0", "here", object, None, lambda _: None), Path("nowhere"), TIMEOUT_S)


def settings_of(granules: int) -> Settings:
    return settings_from({"model": "m", "device_memory": granules * PAGE, "granule": PAGE})


def allow(room: int) -> None:
    """From now on this process has room for so many more descriptors of handles."""
    used = len(os.listdir("/proc/self/fd")) - 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + SPARE_DESCRIPTORS + room,) * 2)


def device(address: str, granules: int, room: int) -> str:
    memory = MemorySettings(granules * PAGE, PAGE, pool_bytes=0)
    driver = open_host_driver(granule_bytes=PAGE, capacity_bytes=granules * PAGE)
    service = DeviceService(driver, DeviceSettings("host:0", memory), clock=time.monotonic)
    server = open_attach_server("host:0", service)
    with Listener(address, "AF_UNIX") as listener:
        allow(room)
        check_device(settings_of(granules), descriptor_room())
        threading.Thread(target=server.serve, daemon=True).start()
        print("ready", flush=True)
        with listener.accept() as client:
            client.send(server.address)
            while frame := client.recv_bytes():
                client.send_bytes(service.frame(frame))
    return f"created {service.audit().handles['out'] // PAGE}"


@dataclass(frozen=True, slots=True)
class Answered:
    data: bytes

    def ready(self) -> bool:
        return True

    def result(self, timeout_s: float) -> bytes:
        return self.data


class Transport(ActorTransport):
    """The actors', but for the way of a frame."""

    frames: Connection

    def send(self, frame: bytes) -> Answered:  # type: ignore[override]
        self.frames.send_bytes(frame)
        return Answered(self.frames.recv_bytes())


def worker(address: str, granules: int, room: int) -> str:
    with Client(address, "AF_UNIX") as frames:
        session, driver = new_session(), open_host_driver(granule_bytes=PAGE, capacity_bytes=granules * PAGE)
        attach = open_attach_client(frames.recv(), session, timeout_s=TIMEOUT_S)
        allow(room)
        transport = Transport(None, attach, OWNER, driver=driver, page=None)
        transport.frames = frames
        port = DevicePort(session, attach.welcome, driver, transport)
        shape = Shape.of(TOKEN, Layout.TOKEN_MAJOR, PAGE)
        check_memory(settings_of(granules), shape, descriptor_room(), mapping_room())
        before = len(os.listdir("/proc/self/fd"))
        written = filled(port.memory(SequenceSpec(TOKEN, Layout.TOKEN_MAJOR, granules)), granules)
        after = len(os.listdir("/proc/self/fd"))
        frames.send_bytes(b"")
    return f"wrote {written}, and keeps {after - before} descriptors"


def filled(memory: SequenceMemory, granules: int) -> int:
    """Commit all of the device in one frame; how many of its granules hold what was written there."""
    memory.commit(granules, memory.grant(granules))
    places = [memory.range.address + index * PAGE for index in range(granules)]
    for place in places:
        ctypes.c_int64.from_address(place).value = place
    return sum(ctypes.c_int64.from_address(place).value == place for place in places)


def main() -> None:
    role, name, granules, room = sys.argv[1:]
    try:
        print({"device": device, "worker": worker}[role](f"\0{name}", int(granules), int(room)), flush=True)
    except ConfigError as refusal:
        print(refusal, flush=True)


if __name__ == "__main__":
    main()
