"""Disconnected is not dead; dead is what the pidfd says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from kvcluster.attach import server as server_module
from kvcluster.attach import sockets
from kvcluster.attach.client import AttachClient
from kvcluster.attach.server import open_attach_server
from tests.attach.attach_world import ROOT, ChildClient, Recorder, Serving, contents

Attach = Callable[[str], AttachClient]

DEAD_CLIENT = """
import sys
from tests.attach.attach_world import RawClient, contents
from kvcluster.wire.socket import Hello
RawClient(sys.argv[1].replace("@", chr(0))).say(Hello(session="dead"))
"""


def test_the_service_learns_the_pid_that_the_kernel_knows(events: Recorder, child: ChildClient) -> None:
    assert child.ask("attach s") == "welcome to host:0"
    assert events.pids == {"s": child.pid}


def test_a_killed_client_is_disconnected_and_then_gone(events: Recorder, child: ChildClient) -> None:
    child.ask("attach s")
    child.kill()
    events.wait_for("gone", "s")
    assert events.of("s") == ["hello", "disconnected", "gone"]


def test_a_client_that_closed_its_socket_is_not_gone_before_it_dies(
    events: Recorder, child: ChildClient, attach: Attach
) -> None:
    child.ask("attach s")
    assert child.ask("close") == "closed"
    events.wait_for("disconnected", "s")
    assert contents(attach("other"), events.empty) == []  # the loop has turned since
    assert events.of("s") == ["hello", "disconnected"]
    child.kill()
    events.wait_for("gone", "s")


def test_a_client_is_gone_though_a_forked_child_still_holds_its_socket(events: Recorder, child: ChildClient) -> None:
    child.ask("attach s")
    assert child.ask("fork") == "forked"
    child.kill()
    events.wait_for("gone", "s")
    assert events.of("s") == ["hello", "disconnected", "gone"]


def test_a_forked_child_cannot_redeem_what_would_outlive_the_pidfd_that_is_watched(child: ChildClient) -> None:
    child.ask("attach s")
    assert child.ask("fork_and_redeem 3") == "DeviceUnreachable"


@pytest.fixture(params=["pidfd of the peer", "pidfd by its id"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is, and as one older than Linux 6.5."""
    if request.param == "pidfd by its id":
        monkeypatch.setattr(sockets, "SO_PEERPIDFD", 10_000)


@pytest.mark.usefixtures("kernel")
def test_a_killed_client_is_gone_on_new_kernels_and_old(events: Recorder, child: ChildClient) -> None:
    child.ask("attach s")
    child.kill()
    events.wait_for("gone", "s")


@pytest.mark.usefixtures("kernel")
def test_a_client_that_died_before_its_hello_was_read_is_refused(
    events: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "IDLE_S", 0.05)
    server = open_attach_server("host:0", events)
    address = server.address.replace("\0", "@")
    subprocess.run([sys.executable, "-c", DEAD_CLIENT, address], check=True, cwd=ROOT, timeout=60)
    serving = Serving(server)
    events.wait_for("idle", "", times=2)
    serving.close()
    assert events.of("dead") == []


def test_heartbeats_arrive_in_the_period_that_the_device_asked_for(events: Recorder, attach: Attach) -> None:
    events.heartbeat_s = 0.01
    attach("s")
    events.wait_for("heartbeat", "s", times=3)


def test_a_closed_client_sends_no_heartbeat_and_is_not_alive(events: Recorder, attach: Attach) -> None:
    events.heartbeat_s = 0.01
    client = attach("s")
    assert client.alive
    client.close()
    assert not client.alive
    events.wait_for("disconnected", "s")
    assert events.of("s")[-1] == "disconnected"


def test_the_service_gets_its_time_for_housekeeping_under_load(
    events: Recorder, attach: Attach, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "IDLE_S", 0.02)
    events.heartbeat_s = 0.001
    attach("s")
    events.wait_for("idle", "", times=2)
