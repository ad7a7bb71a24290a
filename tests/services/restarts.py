"""A device that dies and comes back, and clients of it that go on: every incarnation in this process, over real memory.

Each incarnation has a driver and a service of its own, and what it hands over goes to the clients as descriptors, as
between processes. Its death closes its driver: what clients have mapped lives on in them alone. The table of sessions
is kept by this world, since all clients are this process's.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvcluster.attach.protocol import Survivor
from kvcluster.driver.protocol import Driver, PhysicalHandle
from kvcluster.errors import DeviceUnreachable
from kvcluster.geometry.layout import Layout
from kvcluster.ids import new_session
from kvcluster.services.contact import Link
from kvcluster.services.device import DeviceService, DeviceSettings
from kvcluster.services.device_memory import MemorySettings
from kvcluster.services.port import DevicePort
from kvcluster.services.renewal import MOST_REQUESTS
from kvcluster.services.sequence import SequenceMemory, SequenceSpec
from kvcluster.services.transport import Transport
from kvcluster.testing.clock import ManualClock
from kvcluster.testing.tidy_driver import TidyDriver
from kvcluster.wire.socket import Fenced, Hello, Reclaim
from tests.services.world import GEOMETRY, GRANULE, TOKENS


@dataclass
class Table:
    """A `services.session_file.SessionLog` that stays when its device dies."""

    rows: dict[str, int] = field(default_factory=dict)
    survivors: tuple[Survivor, ...] = ()

    def enter(self, session: str, pid: int) -> None:
        self.rows.setdefault(session, 0)

    def note(self, session: str, size_bytes: int) -> None:
        if session in self.rows:
            self.rows[session] = size_bytes

    def strike(self, session: str) -> None:
        self.rows.pop(session, None)

    def after_death(self) -> Table:
        left = tuple(Survivor(session, 1, -1, size_bytes) for session, size_bytes in self.rows.items())
        return Table(dict(self.rows), left)


@dataclass(frozen=True)
class Reply:
    data: bytes | None

    def ready(self) -> bool:
        return True

    def result(self, timeout_s: float) -> bytes:
        if self.data is None:
            raise DeviceUnreachable(device="host", reason="it died")
        return self.data


class Way:
    """Frames as calls, and handles as descriptors. `loses_replies`: what is executed is not answered."""

    page = None

    def __init__(self, world: RestartWorld, service: DeviceService, session: str, driver: Driver) -> None:
        self.loses_replies = self.is_fenced = False
        self._held: set[PhysicalHandle] = set()
        self._world, self._service, self._session, self._driver = world, service, session, driver

    def send(self, frame: bytes) -> Reply:
        if not self.is_open:
            return Reply(None)
        data = self._service.frame(frame)
        is_answered = self._world.executed() and not self.loses_replies
        return Reply(data if is_answered else None)

    def redeem(self, seq: int) -> Sequence[PhysicalHandle]:
        if self._world.dies_at_redeem:
            self._world.die()
        if not self.is_open:
            raise DeviceUnreachable(device="host", reason="it died")
        found: list[PhysicalHandle] = []
        total = 1
        while len(found) < total:
            piece = self._service.redeem(self._session, seq, len(found))
            total = piece.total
            for handed in piece.handles:
                assert handed.fd is not None  # nothing is known
                found.append(self._driver.import_fd(handed.fd, handed.size_bytes))
            self._world.close_all(piece.fds)
        return found

    def settled(self, handles: Sequence[PhysicalHandle]) -> None:
        for handle in handles:
            if handle not in self._held:
                self._driver.release(handle)

    def hold(self, handles: Sequence[PhysicalHandle]) -> None:
        self._held |= set(handles)

    def let_go(self, handles: Sequence[PhysicalHandle]) -> None:
        for handle in self._held & set(handles):
            self._driver.release(handle)
            self._held.remove(handle)

    def pushes(self) -> tuple[Reclaim, ...]:
        said = self._service.pushes(self._session) if self.is_open else ()
        self.is_fenced = self.is_fenced or any(isinstance(push, Fenced) for push in said)
        return tuple(push for push in said if isinstance(push, Reclaim))

    @property
    def is_open(self) -> bool:
        return self._world.service is self._service

    def surrender(self) -> None:
        if self._world.dies_at_surrender:
            self._world.die()
        if self._world.dies_of_surrender:  # it was said, and who was to hear it is dead
            self._world.die()
            return
        if not self.is_open:
            raise DeviceUnreachable(device="host", reason="it died")
        self._service.surrendered(self._session)

    def close(self) -> None:
        self.let_go(tuple(self._held))
        if self.is_open:
            self._service.disconnected(self._session)


class RestartWorld:
    """`capacity` granules. `die` kills the device, and the next incarnation is there."""

    def __init__(self, capacity: int = 64) -> None:
        self.clock = ManualClock()
        self.table = Table()
        self.ports: list[DevicePort] = []
        self.uses_names_up = False  # a hello is answered only when it is said again, under another name
        self._drivers: list[TidyDriver] = []
        self._capacity_bytes = capacity * GRANULE
        self._granule_bytes = GRANULE
        self._incarnation = 0
        self.dies_at_surrender = self.dies_of_surrender = self.dies_at_redeem = False
        self._frames_left: int | None = None
        self.service = self._next()

    def close_all(self, fds: Sequence[int]) -> None:
        for fd in fds:
            os.close(fd)

    def _next(self) -> DeviceService:
        self._incarnation += 1
        memory = MemorySettings(self._capacity_bytes, self._granule_bytes, 4 * GRANULE)
        settings = DeviceSettings("host", memory, epoch=self._incarnation, incarnation=self._incarnation)
        self._owners = self._driver()
        return DeviceService(self._owners, settings, clock=self.clock, log=self.table)

    def _driver(self) -> TidyDriver:
        driver = TidyDriver(granule_bytes=self._granule_bytes, capacity_bytes=self._capacity_bytes)
        self._drivers.append(driver)
        return driver

    def open_port(self, *, most_registered: int = MOST_REQUESTS) -> DevicePort:
        """A client with a driver of its own."""
        session, driver = new_session(), self._driver()
        welcome = self.service.hello(Hello(session=session), pid=1)

        def seek(session: str, epoch: int, *, stopping: threading.Event) -> Link[Transport]:
            if self.uses_names_up:
                self.service.hello(Hello(session=session), pid=1)
                self.service.disconnected(session)
                session = new_session()
            found = self.service.hello(Hello(session=session), pid=1)
            return Link(session, found, Way(self, self.service, session, driver))

        way = Way(self, self.service, session, driver)
        port = DevicePort(session, welcome, driver, way, seek=seek, most_registered=most_registered)
        self.ports.append(port)
        return port

    def memory(self, port: DevicePort, tokens: int, *, cache_root: bytes = b"") -> SequenceMemory:
        spec = SequenceSpec(GEOMETRY, Layout.TOKEN_MAJOR, 16 * TOKENS, cache_root=cache_root)
        memory = port.memory(spec)
        if tokens:
            memory.commit(tokens, memory.grant(tokens))
        return memory

    def die(self, *, granule_bytes: int = GRANULE) -> None:
        """The device's process is dead, and another one begins; its clients notice when they look."""
        self._granule_bytes = granule_bytes
        self._owners.clear()
        self._drivers.remove(self._owners)
        self.table = self.table.after_death()
        self.service = self._next()

    def fence(self) -> None:
        """Every client was silent for longer than its lease."""
        for _ in range(20):  # a device that looks at longer intervals was stopped itself, and gives them time
            self.clock.advance(2.0)
            self.service.idle()

    def all_in_touch(self) -> None:
        """Every client has found the new incarnation, and registered."""
        for port in self.ports:
            self.in_touch(port)

    def in_touch(self, port: DevicePort) -> None:
        """This client has."""
        while not port.in_touch():
            threading.Event().wait(0.001)

    def look(self, port: DevicePort) -> bool:
        """This client has found an incarnation, and begun to register; whether it was heard to the end."""
        before = port.welcome.epoch
        while not (is_heard := port.in_touch()) and port.welcome.epoch == before:
            threading.Event().wait(0.001)
        return is_heard

    def limit_frames(self, count: int) -> None:
        """The device dies when it has executed so many more frames, and before it answers the last; 0: it does not."""
        self._frames_left = count or None

    def executed(self) -> bool:
        """A frame was executed; whether it is answered."""
        if self._frames_left is None:
            return True
        self._frames_left -= 1
        if self._frames_left:
            return True
        self._frames_left = None
        self.die()
        return False

    def granules(self, kind: str) -> int:
        accounts = self.service.audit().accounts
        return sum(size for name, size in accounts.items() if name.split("/")[0].split("@")[0] == kind) // GRANULE

    def close(self) -> None:
        for port in self.ports:
            for memory in port.memories():
                memory.close()
            port.close()
        self.service.close()
        for driver in self._drivers:
            driver.clear()
