"""A client keeps what it imported, few enough, and drops it when it is gone, whatever fails."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from kvcluster.attach.client import AttachClient, open_attach_client
from kvcluster.driver.host import open_host_driver
from kvcluster.driver.protocol import PhysicalHandle
from kvcluster.errors import DriverError, LimitReached, NotAllowed
from kvcluster.geometry.layout import Layout
from kvcluster.services.asks import Join
from kvcluster.services.imports import Imports
from kvcluster.services.port import DevicePort
from kvcluster.services.sequence import SequenceMemory, SequenceSpec
from kvcluster.testing.faulty_driver import FaultyDriver, failing_every, failing_named, never
from kvcluster.wire.socket import Reclaim
from tests.services.child import GEOMETRY
from tests.services.processes import GRANULE, TIMEOUT_S, Host
from tests.services.ways import Way
from tests.services.world import digest, fill


class Answered:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def ready(self) -> bool:
        return True

    def result(self, timeout_s: float) -> bytes:
        return self._data


class Client(Way):
    """A client in this process, over the attach socket as if it were another one. A transport of its own."""

    def __init__(self, host: Host, attach: AttachClient, *, most: int | None) -> None:
        self._host = host
        self.driver = FaultyDriver(open_host_driver(granule_bytes=GRANULE, capacity_bytes=2**30))
        self.imports = Imports(attach, self.driver, most=most)
        self.port = DevicePort("s", attach.welcome, self.driver, self)

    def send(self, frame: bytes) -> Answered:
        return Answered(self._host.frame(frame))

    def redeem(self, seq: int) -> Sequence[PhysicalHandle]:
        return self.imports.redeem(seq)

    def settled(self, handles: Sequence[PhysicalHandle]) -> None:
        self.imports.settled(handles)

    def hold(self, handles: Sequence[PhysicalHandle]) -> None:
        self.imports.hold(handles)

    def let_go(self, handles: Sequence[PhysicalHandle]) -> None:
        self.imports.let_go(handles)

    def pushes(self) -> tuple[Reclaim, ...]:
        return self.imports.pushes()

    def close(self) -> None:
        self.imports.close()

    def memory(self) -> SequenceMemory:
        return self.port.memory(SequenceSpec(GEOMETRY, Layout.TOKEN_MAJOR, 4096))

    @property
    def imported(self) -> int:
        return self.driver.calls().get("import_fd", 0)


class Desk:
    """Opens clients, and ends them before the device."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.host = Host()
        stack.callback(self.host.close)

    def client(self, most: int | None = None) -> Client:
        attach = open_attach_client(self.host.server.address, "s", timeout_s=TIMEOUT_S)
        self._stack.callback(attach.close)
        client = Client(self.host, attach, most=most)
        self._stack.callback(client.driver.close)
        self._stack.callback(client.close)
        return client


@pytest.fixture
def desk(nothing_left: None) -> Iterator[Desk]:
    with ExitStack() as stack:
        yield Desk(stack)


def descriptors(client: Client) -> int:
    """Those of device memory, once the server has closed its copies of what it handed over before."""
    with pytest.raises(NotAllowed):
        client.imports.redeem(10**6)  # there is no such ticket
    links = [Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd")]
    return sum("memfd:kvcluster" in str(os.readlink(link)) for link in links if link.is_symlink())


def grow(memory: SequenceMemory, granules: int) -> None:
    memory.commit(16 * granules, memory.grant(16 * granules))


def test_no_more_are_kept_than_were_allowed_and_the_latest_used_stay(desk: Desk) -> None:
    client = desk.client(most=8)
    memory = client.memory()
    grow(memory, 20)
    fill(memory)
    content = digest(memory)
    assert len(client.imports) == 8
    assert digest(memory) == content  # a mapping needs no import
    memory.release()
    grow(memory, 20)
    assert client.imported == 20 + 12
    memory.close()


def test_none_at_all_may_be_kept(desk: Desk) -> None:
    client = desk.client(most=0)
    memory = client.memory()
    grow(memory, 3)
    assert len(client.imports) == 0
    memory.close()


def test_every_descriptor_of_an_import_is_closed_with_it(desk: Desk) -> None:
    client = desk.client()
    memory = client.memory()
    assert descriptors(client) == 0
    grow(memory, 30)
    assert descriptors(client) == 2 * 30  # the device's own, and the client's
    client.close()
    assert descriptors(client) == 30
    memory.close()


def test_an_import_that_fails_keeps_none_of_its_ticket_and_the_windows_go_back(desk: Desk) -> None:
    client = desk.client()
    memory = client.memory()
    grow(memory, 4)
    for number in itertools.count(1):
        before = descriptors(client)
        client.driver.follow(failing_named("import_fd", number))
        try:
            grow(memory, 10)
        except DriverError:
            assert len(client.imports) == 4
            assert desk.host.granules("requests") == 4
            assert descriptors(client) - before in (0, 6)  # those that the device pools since
        else:
            break
    client.driver.follow(never())
    assert number == 7
    memory.close()


def test_an_import_that_cannot_be_dropped_is_no_error_of_anybodys(desk: Desk) -> None:
    client = desk.client(most=2)
    memory = client.memory()
    client.driver.follow(failing_every("release"))
    grow(memory, 4)
    client.driver.follow(never())
    assert memory.tokens == 64
    memory.close()


def test_at_the_limit_of_descriptors_a_growth_is_refused_and_nothing_stays_imported(desk: Desk) -> None:
    client = desk.client()
    memory = client.memory()
    grow(memory, 2)

    def full(descriptor: int, size_bytes: int) -> PhysicalHandle:
        raise LimitReached(limit="descriptors", need=1, free=0, remedy="close some")

    importing, client.driver.import_fd = client.driver.import_fd, full  # type: ignore[method-assign]
    with pytest.raises(LimitReached):
        grow(memory, 5)
    client.driver.import_fd = importing  # type: ignore[method-assign]
    assert (len(client.imports), desk.host.granules("requests")) == (2, 2)
    grow(memory, 5)
    memory.close()


def test_two_requests_that_join_in_one_frame_share_their_imports(desk: Desk) -> None:
    client = desk.client()
    owner = client.memory()
    grow(owner, 10)
    fill(owner)
    prefix = owner.publish(160)
    content, before = digest(owner), client.imported
    joiners = [client.memory() for _ in range(3)]
    outcomes = client.port.submit([Join(joiner, prefix, 160) for joiner in joiners]).settle()
    assert [outcome.error for outcome in outcomes] == [None] * 3
    assert client.imported == before
    assert {digest(joiner) for joiner in joiners} == {content}
    for memory in (owner, *joiners):
        memory.close()
