"""What a client may not do, and what becomes of the server when it does it: nothing."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from kvcluster.attach import line, sockets
from kvcluster.attach.client import AttachClient, open_attach_client
from kvcluster.attach.line import open_line
from kvcluster.attach.protocol import REPLY_TIMEOUT_S
from kvcluster.attach.server import open_attach_server
from kvcluster.attach.sockets import Peer, is_trusted
from kvcluster.errors import DeviceUnreachable, InvariantBroken, NeverFits, NotAllowed
from kvcluster.services import correspondence
from kvcluster.testing.clock import ManualClock
from kvcluster.wire.codec import MAX_SOCKET_BYTES, encode
from kvcluster.wire.messages import Fault
from kvcluster.wire.socket import Handed, Heartbeat, Hello, Redeem, Welcome
from tests.attach.attach_world import RawClient, Recorder, Serving, contents

Attach = Callable[[str], AttachClient]

HELLO = encode(Hello(session="raw"))
BAD_BEFORE_HELLO: dict[str, bytes] = {
    "garbage": b"\xffgarbage",
    "oversized": bytes(MAX_SOCKET_BYTES + 1),
    "redeem": encode(Redeem(ask=1, seq=1)),
    "heartbeat": encode(Heartbeat()),
    "fault": encode(Fault(error="NeverFits", fields={"need": 1, "capacity": 1})),
}
BAD_AFTER_HELLO = BAD_BEFORE_HELLO | {"hello": HELLO, "handed": encode(Handed(ask=1, seq=1, total=0))}
del BAD_AFTER_HELLO["redeem"], BAD_AFTER_HELLO["heartbeat"]


def told_and_dropped(raw: RawClient) -> None:
    fault = raw.hear()
    assert isinstance(fault, Fault)
    assert fault.error == "BadFrame"
    assert raw.hear() is None


@pytest.mark.parametrize("name", sorted(BAD_BEFORE_HELLO))
def test_a_stranger_without_manners_is_told_and_dropped(
    events: Recorder, raw: RawClient, attach: Attach, name: str
) -> None:
    raw.socket.send(BAD_BEFORE_HELLO[name])
    told_and_dropped(raw)
    assert contents(attach("other"), events.empty) == []
    assert events.of("raw") == []


@pytest.mark.parametrize("name", sorted(BAD_AFTER_HELLO))
def test_a_session_without_manners_is_told_and_disconnected(
    events: Recorder, raw: RawClient, attach: Attach, name: str
) -> None:
    raw.hello("raw")
    raw.socket.send(BAD_AFTER_HELLO[name])
    told_and_dropped(raw)
    events.wait_for("disconnected", "raw")
    assert contents(attach("other"), events.empty) == []


def test_a_connection_that_ends_before_hello_is_nobodys(events: Recorder, raw: RawClient, attach: Attach) -> None:
    raw.socket.close()
    attach("s")
    assert events.calls == [("hello", "s")]


def test_descriptors_that_a_client_sends_are_closed_unseen(raw: RawClient) -> None:
    socket.send_fds(raw.socket, [HELLO], [raw.socket.fileno()])
    told_and_dropped(raw)


def test_a_refused_hello_raises_the_services_error_and_leaves_nothing(events: Recorder, attach: Attach) -> None:
    events.hello_error = NeverFits(need=2, capacity=1)
    with pytest.raises(NeverFits):
        attach("s")
    assert events.of("s") == ["hello"]


def test_a_session_is_one_process_as_long_as_that_lives(events: Recorder, attach: Attach) -> None:
    client = attach("s")
    with pytest.raises(NotAllowed):
        attach("s")
    client.close()
    events.wait_for("disconnected", "s")
    with pytest.raises(NotAllowed):
        attach("s")
    assert events.of("s") == ["hello", "disconnected"]


@pytest.mark.parametrize(
    ("peer", "trusted"),
    [
        (Peer(pid=1, uid=os.geteuid()), True),
        (Peer(pid=1, uid=os.geteuid() + 1), False),
        (Peer(pid=0, uid=os.geteuid()), False),
    ],
)
def test_only_a_visible_process_of_our_own_user_is_trusted(peer: Peer, trusted: bool) -> None:
    assert is_trusted(peer) is trusted


def test_both_sides_close_at_once_where_the_peer_is_not_trusted(
    events: Recorder, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 2**31 - 2)
    with pytest.raises(DeviceUnreachable, match="another user"):
        open_attach_client(address, "s", timeout_s=10)
    raw = RawClient(address)
    assert raw.hear() is None
    raw.socket.close()
    assert events.calls == []


def test_two_servers_of_one_device_have_names_of_their_own(events: Recorder) -> None:
    servers = [open_attach_server("host:0", events) for _ in range(2)]
    assert len({server.address for server in servers}) == 2
    for server in servers:
        server.close()


def test_a_device_name_too_long_for_a_socket_is_refused(events: Recorder) -> None:
    with pytest.raises(ValueError, match="too long"):
        open_attach_server("d" * 64, events)


def test_nobody_at_the_address_is_a_device_unreachable() -> None:
    with pytest.raises(DeviceUnreachable, match="@kvcluster-nobody"):
        open_attach_client("\0kvcluster-nobody", "s", timeout_s=1)


def test_a_server_that_does_not_serve_is_unreachable_within_the_timeout(events: Recorder) -> None:
    server = open_attach_server("host:0", events)
    with pytest.raises(DeviceUnreachable, match="in time"):
        open_attach_client(server.address, "s", timeout_s=0.05)
    server.close()


def test_a_full_queue_of_connections_is_unreachable_within_the_timeout(events: Recorder) -> None:
    server = open_attach_server("host:0", events)
    with ExitStack() as waiting:

        def connect_for_ever() -> None:
            while True:
                waiting.enter_context(open_line(server.address, time.monotonic() + 0.05).socket)

        with pytest.raises(DeviceUnreachable, match="cannot connect"):
            connect_for_ever()
    server.close()


def test_close_may_come_before_serve_and_twice(events: Recorder) -> None:
    server = open_attach_server("host:0", events)
    server.close()
    server.close()
    server.serve()
    assert events.calls == []


def test_a_second_thread_may_not_serve(events: Recorder, serving: Serving, attach: Attach) -> None:
    attach("s")
    with pytest.raises(RuntimeError, match="already"):
        serving.server.serve()
    assert contents(attach("t"), events.empty) == []


def test_an_invariant_that_the_service_finds_broken_is_not_told_but_ends_the_server(
    events: Recorder, serving: Serving, attach: Attach
) -> None:
    events.hello_error = InvariantBroken(sentence="a test says so")
    with pytest.raises(DeviceUnreachable):
        attach("s")
    serving.wait()
    assert isinstance(serving.failure, InvariantBroken)


def test_the_server_says_nothing_of_its_sessions_when_it_closes(
    events: Recorder, serving: Serving, attach: Attach
) -> None:
    attach("s")
    serving.close()
    assert events.of("s") == ["hello"]


def test_a_connection_that_never_says_hello_is_told_and_dropped_and_one_that_did_stays(
    events: Recorder, stack: ExitStack
) -> None:
    clock = ManualClock()
    serving = Serving(open_attach_server("host:0", events, clock=clock))
    stack.callback(serving.close)
    silent, polite = RawClient(serving.server.address), RawClient(serving.server.address)
    for raw in (silent, polite):
        stack.callback(raw.socket.close)
    assert isinstance(polite.hello("polite"), Welcome)  # so the silent one, which came before it, is in by now
    clock.advance(10)
    fault = silent.hear()
    assert isinstance(fault, Fault)
    assert "no hello" in fault.fields["reason"]
    assert silent.hear() is None
    polite.say(Heartbeat())
    events.wait_for("heartbeat", "polite")


def test_a_redemption_waits_for_a_slow_device_as_long_as_a_frame_does(
    events: Recorder, attach: Attach, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both wait for the device's one lock: whoever gave up earlier would end a healthy worker."""
    client, waits = attach("s"), []

    def wait_for(connection: socket.socket, event: int, timeout_s: float) -> bool:
        waits.append(timeout_s)
        events.gate.set()
        return sockets.wait_for(connection, event, timeout_s)

    monkeypatch.setattr(line, "wait_for", wait_for)
    events.gate.clear()
    client.redeem(1, lambda _: None)
    assert REPLY_TIMEOUT_S - 5 < max(waits) <= REPLY_TIMEOUT_S == correspondence.REPLY_TIMEOUT_S
