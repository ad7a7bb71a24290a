"""A client believes nothing that does not add up, and keeps no descriptor of it."""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
from contextlib import ExitStack
from typing import Any

import pytest
from pydantic import ValidationError

from kvcluster.attach.client import open_attach_client
from kvcluster.attach.connection import Connection
from kvcluster.attach.line import Line
from kvcluster.attach.protocol import Descriptors, HandedHandle
from kvcluster.attach.redemption import redeem_all
from kvcluster.attach.server import open_attach_server
from kvcluster.attach.sockets import is_hung_up, packet_socket
from kvcluster.errors import DeviceUnreachable, KvClusterError, LimitReached, NeverFits
from kvcluster.ids import ImportKey
from kvcluster.wire.codec import encode
from kvcluster.wire.messages import Fault
from kvcluster.wire.socket import Handed, Heartbeat, NotHanded
from tests.attach.attach_world import TIMEOUT_S, Recorder, Serving, memory_with, open_fds, room_for

NEVER = Fault(error="NeverFits", fields={"need": 2, "capacity": 1})


def handed(count: int, total: int, ask: int = 2, known: int = 0) -> bytes:
    """`count` handles, the first `known` of them without a descriptor."""
    handles = tuple((number, 1, False, 4096, number >= known) for number in range(count))
    return encode(Handed(ask=ask, seq=1, total=total, handles=handles))


class Pair:
    """A line, and its other end that says whatever it likes."""

    def __init__(self) -> None:
        ours, self.other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self.line = Line(ours, "host:0")

    def tell(self, data: bytes, fds: int = 0) -> None:
        sent = [memory_with(str(number)) for number in range(fds)]
        socket.send_fds(self.other, [data], sent)
        for fd in sent:
            os.close(fd)

    def redeem(self, timeout_s: float = 10.0) -> None:
        redeem_all(self.line, 2, time.monotonic() + timeout_s, lambda _: None)


@pytest.fixture
def pair(stack: ExitStack) -> Pair:
    pair = Pair()
    stack.callback(pair.line.socket.close)
    stack.callback(pair.other.close)
    return pair


@pytest.mark.parametrize(
    ("said", "fds"),
    [
        (b"\xffgarbage", 3),
        (handed(3, 3), 2),
        (handed(3, 3, known=1), 3),
        (handed(3, 2), 3),
        (handed(0, 2), 0),
        (handed(1, 1, ask=3), 2),
        (encode(Heartbeat()), 1),
    ],
)
def test_what_does_not_add_up_is_a_device_unreachable_and_leaves_nothing_open(
    pair: Pair, said: bytes, fds: int
) -> None:
    before = open_fds()
    pair.tell(said, fds)
    with pytest.raises(DeviceUnreachable):
        pair.redeem()
    assert open_fds() == before


@pytest.mark.parametrize("message", [NEVER, NotHanded(ask=2, fault=NEVER)])
def test_a_fault_in_the_middle_closes_what_came_before(pair: Pair, message: Any) -> None:
    before = open_fds()
    pair.tell(handed(2, 4), 2)
    pair.tell(encode(message))
    with pytest.raises(NeverFits):
        pair.redeem()
    assert open_fds() == before


def test_a_redemption_whose_second_half_is_late_leaves_nothing_open(pair: Pair) -> None:
    before = open_fds()
    pair.tell(handed(2, 4), 2)
    with pytest.raises(DeviceUnreachable, match="in time"):
        pair.redeem(timeout_s=0.01)
    assert open_fds() == before


def test_a_server_that_dies_in_the_middle_of_a_redemption_leaves_nothing_open(pair: Pair) -> None:
    pair.tell(handed(2, 4), 2)
    pair.other.close()
    before = open_fds()
    with pytest.raises(DeviceUnreachable, match="closed the connection"):
        pair.redeem()
    assert open_fds() == before


def test_a_connection_that_is_reset_is_a_device_unreachable(pair: Pair) -> None:
    pair.line.say(Heartbeat(), time.monotonic() + 1)
    pair.other.close()
    with pytest.raises(DeviceUnreachable, match="reset"):
        pair.redeem()


def test_a_server_that_is_silent_is_asked_about_again_and_again_and_waited_for_no_more_once_it_is_gone(
    pair: Pair,
) -> None:
    said = iter([False, False, True])
    pair.line.when_silent(0.001, lambda: next(said))
    with pytest.raises(DeviceUnreachable, match="no answer within 0 s, and it is not awake"):
        pair.redeem(timeout_s=TIMEOUT_S)
    assert next(said, None) is None
    assert is_hung_up(pair.line.socket)


def test_a_server_that_is_slow_and_awake_is_waited_for(pair: Pair) -> None:
    def is_gone() -> bool:
        pair.tell(handed(2, 2), 2)
        return False

    pair.line.when_silent(0.001, is_gone)
    pair.redeem(timeout_s=TIMEOUT_S)


def test_a_server_that_does_not_read_is_unreachable_within_the_timeout(pair: Pair) -> None:
    def say_for_ever() -> None:
        while True:
            pair.line.say(Heartbeat(), time.monotonic() + 0.01)

    with pytest.raises(DeviceUnreachable, match="in time"):
        say_for_ever()


def test_nothing_is_said_to_a_server_that_has_gone(pair: Pair) -> None:
    pair.other.close()
    with pytest.raises(DeviceUnreachable, match="ended"):
        pair.line.say(Heartbeat(), time.monotonic() + 1)


def test_a_welcome_that_is_none_is_a_device_unreachable(stack: ExitStack) -> None:
    listening = stack.enter_context(packet_socket())
    listening.bind(f"\0kvcluster-impostor-{os.getpid()}")
    listening.listen()

    def impostor() -> None:
        connection, _ = listening.accept()
        connection.recv(1000)
        connection.send(encode(Heartbeat()))
        connection.close()

    thread = threading.Thread(target=impostor)
    thread.start()
    with pytest.raises(DeviceUnreachable, match="answered hello with 'heartbeat'"):
        open_attach_client(f"\0kvcluster-impostor-{os.getpid()}", "s", timeout_s=30)
    thread.join()


def test_descriptors_that_cannot_be_announced_are_closed(pair: Pair) -> None:
    connection = Connection(pair.other)
    connection.asked(1)
    nothing = HandedHandle(ImportKey(1, 1), 0, memory_with("x"))  # a handle of no bytes is none
    connection.hand(1, lambda _: Descriptors((nothing,), 1))
    before = open_fds()
    with pytest.raises(ValidationError):
        connection.flush()
    assert open_fds() == before - 1


def test_a_server_that_lacks_any_descriptor_to_open_leaves_nothing_open(events: Recorder) -> None:
    for room in itertools.count():
        before = open_fds()
        with room_for(room):
            try:
                server = open_attach_server("host:0", events)
                break
            except OSError:
                pass
        assert open_fds() == before
    assert room >= 3
    server.close()


def test_a_client_that_lacks_any_descriptor_to_attach_leaves_nothing_open(events: Recorder, serving: Serving) -> None:
    failures: list[KvClusterError] = []
    for room in itertools.count():
        session = f"s{room}"
        with room_for(room):
            try:
                client = open_attach_client(serving.server.address, session, timeout_s=30)
                break
            except (DeviceUnreachable, LimitReached) as error:
                failures.append(error)
    client.close()
    assert isinstance(failures[0], LimitReached)  # its own socket
    assert len(failures) >= 2
    assert events.of(session)[0] == "hello"
    assert [events.of(f"s{n}") for n in range(room)] == [[]] * room
