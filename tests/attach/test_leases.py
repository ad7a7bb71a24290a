"""Processes that are stopped, woken and killed: a lease that ends, the word that says so, and the client's last one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from kvcluster.attach.client import AttachClient
from kvcluster.attach.server import open_attach_server
from kvcluster.errors import DeviceUnreachable, SessionEnded
from kvcluster.services.device import DeviceService, DeviceSettings
from kvcluster.services.device_memory import MemorySettings
from kvcluster.testing.clock import ManualClock
from kvcluster.testing.tidy_driver import TidyDriver
from kvcluster.wire import messages as wire
from kvcluster.wire.codec import decode_reply, encode
from kvcluster.wire.faults import error_of
from kvcluster.wire.socket import Fenced, Push, Reclaim, Redeem
from tests.attach.attach_world import TIMEOUT_S, ChildClient, RawClient, Recorder, Serving, contents

Attach = Callable[[str], AttachClient]

GRANULE = 4096
GRANULES = 32
WINDOWS = 12
LEASE_S = 30
KEY = wire.RequestKey(number=1)
FENCED = Fenced(session="s")


class Device:
    """A real one behind its socket; its clock stands still until it is told, and beats come every so many seconds."""

    def __init__(self, heartbeat_s: float = 1000.0) -> None:
        capacity_bytes = GRANULES * GRANULE
        self.clock = ManualClock()
        self.driver = TidyDriver(granule_bytes=GRANULE, capacity_bytes=capacity_bytes)
        memory = MemorySettings(capacity_bytes, GRANULE, 0)
        settings = DeviceSettings("host", memory, lease_s=LEASE_S, heartbeat_s=heartbeat_s)
        self.service = DeviceService(self.driver, settings, clock=self.clock)
        self.serving = Serving(open_attach_server("host:0", self.service))

    @property
    def address(self) -> str:
        return self.serving.server.address

    def child(self, stack: ExitStack, *sessions: str) -> ChildClient:
        """A process with these sessions, each of which has `WINDOWS` windows."""
        child = ChildClient(self.address)
        stack.callback(child.end)
        for session in sessions:
            assert child.ask(f"attach {session}") == "welcome to host"
            self.commit(session)
        return child

    def commit(self, session: str) -> None:
        """Frame 2 has the ticket. Raises what it is refused with."""
        groups = (wire.Group(fragments=1, stride_bytes=GRANULE),)
        grow = wire.Grant(request=KEY, grant=1, size_bytes=WINDOWS * GRANULE)
        self.frame(session, 1, wire.Open(request=KEY, groups=groups, max_tokens=WINDOWS))
        self.frame(session, 2, grow, wire.Commit(request=KEY, grant=1, tokens=WINDOWS))

    def frame(self, session: str, seq: int, *ops: wire.Operation) -> None:
        reply = decode_reply(self.service.frame(encode(wire.Frame(session=session, seq=seq, ack=0, epoch=1, ops=ops))))
        for fault in (reply.fault, *(result.fault for result in reply.results)):
            if fault is not None:
                raise error_of(fault)

    def pass_lease(self, *beating: str) -> None:
        """So much time that leases end, but for those of sessions that are heard, and what is said of it is sent."""
        for _ in range(LEASE_S):
            self.clock.advance(1)
            for session in beating:
                self.service.heartbeat(session)
            self.service.idle()
        self.serving.server.nudge()

    def granules(self, kind: str) -> int:
        accounts = self.service.audit().accounts
        return sum(size for name, size in accounts.items() if name.split("/")[0].split("@")[0] == kind) // GRANULE

    def wait_for(self, what: str, holds: Callable[[], bool]) -> None:
        """What the server's thread does next."""
        deadline = time.monotonic() + TIMEOUT_S
        while not holds():
            assert time.monotonic() < deadline, f"never: {what}"
            os.sched_yield()

    def close(self) -> None:
        self.serving.close()
        self.service.close()
        self.driver.clear()


@pytest.fixture
def device(stack: ExitStack) -> Device:
    device = Device()
    stack.callback(device.close)
    return device


@pytest.fixture
def stopped(device: Device, stack: ExitStack) -> ChildClient:
    """A process that was stopped with windows, and whose lease is over."""
    child = device.child(stack, "s")
    child.stop()
    device.pass_lease()
    return child


# --- a process that is stopped --------------------------------------------------------------------------------------


def test_a_stopped_processs_bytes_are_given_to_nobody_when_its_lease_ends(
    device: Device, stopped: ChildClient, stack: ExitStack
) -> None:
    """CASES 46, with a real process."""
    assert (device.granules("quarantine"), device.granules("free")) == (WINDOWS, GRANULES - WINDOWS)
    seen = device.service.statistics()
    assert (seen.sessions, seen.pids) == ({"s": "orphaned"}, {"s": stopped.pid})
    assert seen.quarantined == {"s": WINDOWS * GRANULE}
    device.child(stack, "t")
    assert (device.granules("quarantine"), device.granules("request")) == (WINDOWS, WINDOWS)


def test_a_process_that_is_woken_hears_that_it_is_fenced_and_is_served_nothing(
    device: Device, stopped: ChildClient
) -> None:
    stopped.go_on()
    assert stopped.ask("is_fenced s") == "True 0 SessionEnded"
    with pytest.raises(SessionEnded):
        device.commit("s")
    assert device.granules("quarantine") == WINDOWS


def test_what_it_has_mapped_is_as_it_left_it_whatever_others_were_given(device: Device, stack: ExitStack) -> None:
    child, other = device.child(stack, "s"), device.child(stack, "t")
    assert child.ask("map s") == f"{WINDOWS} mapped"
    child.stop()
    device.pass_lease("t")
    device.service.surrendered("t")  # the pool has what others had before
    other.ask("attach u")
    device.commit("u")
    assert other.ask("map u") == f"{WINDOWS} mapped"
    child.go_on()
    assert (child.ask("content"), other.ask("content")) == ("s", "u")
    child.kill()
    device.wait_for("its death is known", lambda: set(device.service.statistics().sessions) == {"u"})
    assert device.granules("free") == GRANULES - WINDOWS


def test_its_bytes_are_free_as_soon_as_it_has_surrendered(device: Device, stopped: ChildClient) -> None:
    stopped.go_on()
    assert stopped.ask("surrender s") == "surrendered"
    assert (device.granules("quarantine"), device.granules("free")) == (0, GRANULES)
    assert device.service.statistics().sessions == {}
    assert stopped.ask("attach s") == "NotAllowed: session s was here before: take a new name"
    assert stopped.ask("attach s2") == "welcome to host"


def test_its_bytes_are_free_as_soon_as_it_was_killed_while_it_was_stopped(device: Device, stopped: ChildClient) -> None:
    stopped.kill()
    device.wait_for("its death is known", lambda: not device.service.statistics().sessions)
    assert device.granules("free") == GRANULES


def test_its_heartbeats_go_on_and_revive_nothing(stack: ExitStack) -> None:
    device = Device(heartbeat_s=0.01)
    stack.callback(device.close)
    child = device.child(stack, "s")
    child.stop()
    while device.service.statistics().sessions["s"] == "live":  # what it sent before may come in between
        device.pass_lease()
    device.clock.advance(1)
    child.go_on()
    device.wait_for("it is heard again", lambda: device.service.statistics().silent_s["s"] == 0)
    device.pass_lease()
    assert device.service.statistics().sessions == {"s": "orphaned"}
    assert device.granules("quarantine") == WINDOWS


def test_a_client_that_computes_and_says_nothing_keeps_its_lease_by_its_heartbeats(stack: ExitStack) -> None:
    device = Device(heartbeat_s=0.01)
    stack.callback(device.close)
    device.child(stack, "s")
    for _ in range(3 * LEASE_S):
        device.clock.advance(1)
        device.wait_for("it is heard", lambda: device.service.statistics().silent_s["s"] == 0)
        device.service.idle()
    assert device.service.statistics().sessions == {"s": "live"}


def test_a_fork_that_holds_the_socket_keeps_nothing_of_a_dead_parent(device: Device, stack: ExitStack) -> None:
    child = device.child(stack, "s")
    assert child.ask("fork") == "forked"
    child.stop()
    device.pass_lease()
    child.kill()
    device.wait_for("its death is known", lambda: not device.service.statistics().sessions)
    assert device.granules("free") == GRANULES


def test_of_two_sessions_of_one_process_each_ends_for_itself(device: Device, stack: ExitStack) -> None:
    child = device.child(stack, "s", "t")
    device.pass_lease("t")
    assert (device.granules("quarantine"), device.granules("request")) == (WINDOWS, WINDOWS)
    assert child.ask("surrender s") == "surrendered"
    assert child.ask("is_fenced t") == "False 0 served"
    assert (device.granules("quarantine"), device.granules("request")) == (0, WINDOWS)
    child.kill()
    device.wait_for("its death is known", lambda: not device.service.statistics().sessions)
    assert device.granules("free") == GRANULES


def test_a_goodbye_frees_what_a_live_process_never_gave_back(device: Device, stack: ExitStack) -> None:
    child = device.child(stack, "s")
    assert child.ask("surrender s") == "surrendered"
    assert device.granules("free") == GRANULES
    assert child.ask("surrender s").startswith("DeviceUnreachable")


# --- what is said on the socket -------------------------------------------------------------------------------------


def test_a_surrender_is_told_once_and_then_nothing_not_even_the_death(
    events: Recorder, child: ChildClient, attach: Attach
) -> None:
    child.ask("attach s")
    assert child.ask("surrender s") == "surrendered"
    assert child.ask("attach s2") == "welcome to host:0"
    child.kill()
    events.wait_for("gone", "s2")
    assert contents(attach("other"), events.empty) == []  # the loop has turned since
    assert events.of("s") == ["hello", "surrendered"]


def test_a_fork_can_neither_surrender_nor_close_for_its_parent(events: Recorder, child: ChildClient) -> None:
    child.ask("attach s")
    assert child.ask("fork_and_end s") == "DeviceUnreachable"
    child.hear()
    assert child.ask("redeem 1").endswith("0/1")
    assert events.of("s") == ["hello", "redeem"]


def test_a_client_that_surrendered_is_closed_and_beats_no_more(events: Recorder, attach: Attach) -> None:
    events.heartbeat_s = 0.01
    client = attach("s")
    events.wait_for("heartbeat", "s")
    client.surrender(timeout_s=TIMEOUT_S)
    assert not client.alive
    assert events.of("s")[-1] == "surrendered"
    with pytest.raises(DeviceUnreachable, match="closed"):
        client.surrender(timeout_s=TIMEOUT_S)


def test_a_surrender_that_nobody_reads_says_so_and_closes_the_client(
    events: Recorder, serving: Serving, raw: RawClient, attach: Attach
) -> None:
    late, lost = attach("late"), attach("lost")
    raw.hello("slow")
    events.gate.clear()
    raw.say(Redeem(ask=1, seq=1))
    events.wait_for("redeem", "slow")  # which the server's one thread waits in
    with pytest.raises(DeviceUnreachable, match="in time"):
        late.surrender(timeout_s=0.05)
    assert not late.alive
    events.gate.set()
    serving.close()
    with pytest.raises(DeviceUnreachable, match="ended"):
        lost.surrender(timeout_s=TIMEOUT_S)


def test_a_fence_is_heard_and_stays_and_is_no_demand(events: Recorder, serving: Serving, attach: Attach) -> None:
    client, other = attach("s"), attach("t")
    assert not client.is_fenced
    demand = Reclaim(size_bytes=4096, younger_than=1)
    events.to_say.extend([("s", demand), ("t", demand), ("s", FENCED)])
    serving.server.nudge()
    for _ in range(2):
        client.redeem(events.empty, lambda _: None)  # it is sent by then, and heard before the second answer
    assert client.is_fenced
    assert FENCED not in client.pushes()
    assert (client.is_fenced, other.is_fenced) == (True, False)


def test_a_client_that_reads_nothing_hears_of_its_end_and_of_nothing_that_it_outdid(
    events: Recorder, serving: Serving, raw: RawClient, attach: Attach
) -> None:
    raw.hello("s")
    other = attach("other")
    for ask in range(1, 1001):  # its buffer is full
        raw.say(Redeem(ask=ask, seq=5))
    events.wait_for("redeem", "s", times=1000)
    for push in (Reclaim(size_bytes=1, younger_than=1), Reclaim(size_bytes=2, younger_than=1), FENCED):
        events.to_say.append(("s", push))
        serving.server.nudge()
        assert contents(other, events.empty) == []
    heard: list[Push] = []
    while FENCED not in heard:
        said = raw.hear()
        assert said is not None
        if isinstance(said, Push):
            heard.append(said)
    assert Reclaim(size_bytes=2, younger_than=1) not in heard


def test_a_fenced_client_can_still_surrender_and_the_server_closes_then(
    events: Recorder, serving: Serving, attach: Attach
) -> None:
    client = attach("s")
    events.to_say.append(("s", FENCED))
    serving.server.nudge()
    client.surrender(timeout_s=TIMEOUT_S)
    assert events.of("s") == ["hello", "surrendered"]
