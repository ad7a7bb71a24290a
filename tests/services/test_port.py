"""A client's port over a transport that fails: what is known afterwards, and what is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from kvcluster.driver.protocol import PhysicalHandle
from kvcluster.errors import DeviceUnreachable, DriverError, InvariantBroken, LimitReached, SessionEnded
from kvcluster.geometry.layout import Layout
from kvcluster.ids import GrantId, RequestId
from kvcluster.services.asks import AskGrant, Grow, Shed
from kvcluster.services.memory_state import MemoryState
from kvcluster.services.port import DevicePort
from kvcluster.services.sequence import Grant, SequenceMemory, SequenceSpec
from kvcluster.services.transport import PendingReply, Transport
from kvcluster.testing.arming import armed
from kvcluster.wire import messages as wire
from kvcluster.wire.codec import encode
from kvcluster.wire.socket import Reclaim
from tests.services.ways import Way
from tests.services.world import GEOMETRY, World


class Lost:
    """No reply comes."""

    def ready(self) -> bool:
        return False

    def result(self, timeout_s: float) -> bytes:
        raise DeviceUnreachable(device="host", reason=f"no reply within {timeout_s:.0f} s")


class Flaky(Way):
    """A transport that asks `before_redeeming` first, and loses replies once `loses` is set."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.loses = False
        self.before_redeeming: Callable[[], None] = lambda: None

    def send(self, frame: bytes) -> PendingReply:
        reply = self._inner.send(frame)
        return Lost() if self.loses else reply

    def redeem(self, seq: int) -> Sequence[PhysicalHandle]:
        self.before_redeeming()
        return self._inner.redeem(seq)

    def settled(self, handles: Sequence[PhysicalHandle]) -> None:
        self._inner.settled(handles)

    def pushes(self) -> tuple[Reclaim, ...]:
        return self._inner.pushes()

    def close(self) -> None:
        self._inner.close()


class Line:
    """A port over a flaky transport, and one memory of it."""

    def __init__(self, world: World) -> None:
        local = world.device.open_port()
        self.world = world
        self.transport = Flaky(local.exchange.line)
        self.port = DevicePort(local.session, local.welcome, world.driver, self.transport)
        self.memory: SequenceMemory = self.port.memory(SequenceSpec(GEOMETRY, Layout.TOKEN_MAJOR, 256))

    def refuse_to_redeem(self) -> None:
        raise LimitReached(limit="descriptors", need=1, free=0, remedy="close some")

    def take_windows_away(self) -> None:
        """Release the windows behind the port's back, and fail."""
        key = wire.RequestKey(number=self.memory.request.number)
        run = wire.Run(group=0, fragment=0, start=0, count=2)
        release = wire.Release(request=key, runs=(run,), outcome="clean")
        frame = wire.Frame(session=self.port.session, seq=10**6, ack=0, epoch=self.port.welcome.epoch, ops=(release,))
        self.world.service.frame(encode(frame))
        self.refuse_to_redeem()

    def end_the_session(self) -> None:
        self.world.service.disconnected(self.port.session)


@pytest.fixture
def line(world: World) -> Line:
    return Line(world)


def test_a_lost_reply_leaves_the_ask_undecided_and_the_memory_as_it_was(line: Line) -> None:
    line.transport.loses = True
    pending = line.port.submit([Grow(line.memory, 32)])
    assert not pending.ready()
    with pytest.raises(DeviceUnreachable, match="no reply within 60 s"):
        pending.settle()
    assert (line.memory.tokens, line.memory.committed_bytes, line.memory.in_flight) == (0, 0, False)
    assert line.world.granules("requests") == 2  # the device did it: only the session's end takes it back
    line.end_the_session()
    assert line.world.granules("quarantine") == 2


def test_a_session_that_ends_before_the_redemption_fails_the_ask_and_keeps_the_bytes_charged(line: Line) -> None:
    line.transport.before_redeeming = line.end_the_session
    [outcome] = line.port.submit([Grow(line.memory, 32)]).settle()
    assert isinstance(outcome.error, SessionEnded)
    assert (line.memory.tokens, line.memory.committed_bytes) == (0, 0)
    assert line.world.granules("quarantine") == 2


def test_a_device_that_does_not_take_back_what_it_gave_is_our_bug(line: Line) -> None:
    line.transport.before_redeeming = line.take_windows_away
    with pytest.raises(InvariantBroken, match="does not take back"):
        line.port.submit([Grow(line.memory, 32)]).settle()


def test_a_failed_redemption_gives_the_windows_back_and_the_next_ask_works(line: Line) -> None:
    line.transport.before_redeeming = line.refuse_to_redeem
    [outcome] = line.port.submit([Grow(line.memory, 32)]).settle()
    assert isinstance(outcome.error, LimitReached)
    assert (line.world.granules("requests"), line.world.granules("quarantine")) == (0, 0)
    line.transport.before_redeeming = lambda: None
    [outcome] = line.port.submit([Grow(line.memory, 32)]).settle()
    assert outcome.error is None
    assert (line.memory.tokens, line.port.exchange.traffic.redemptions) == (32, 1)


def test_a_session_that_nobody_can_begin_again_is_ended_all_the_same(line: Line) -> None:
    before = line.port.session
    line.memory.commit(32, line.memory.grant(32))
    with pytest.raises(DeviceUnreachable, match="ended the session"):
        line.port.exchange.begin_again()
    assert line.port.session != before
    assert line.world.granules("quarantine") == 2
    line.memory.holdings.end()


def test_requests_of_a_port_are_numbered_and_never_named_twice(line: Line) -> None:
    again = line.port.memory(SequenceSpec(GEOMETRY, Layout.TOKEN_MAJOR, 256))
    assert [memory.request for memory in (line.memory, again)] == [
        RequestId(line.port.session, 1),
        RequestId(line.port.session, 2),
    ]
    assert line.memory.state is MemoryState.NEW
    assert set(line.port.memories()) == {line.memory, again}


# --- numbers of frames ----------------------------------------------------------------------------------------------


def test_a_frame_that_was_never_sent_leaves_no_gap(line: Line) -> None:
    """Every reply is acknowledged, and so forgotten by the device, whatever failed before a frame left."""
    with armed("client.commit.ask=raise"), pytest.raises(DriverError):
        line.memory.grant(16)
    line.memory.commit(16, line.memory.grant(16))
    line.memory.release()
    assert line.world.device.statistics().stored_replies == 1


def test_an_ask_that_cannot_be_said_is_refused_before_another_one_s_windows_are_unmapped(line: Line) -> None:
    line.memory.commit(32, line.memory.grant(32))
    odd = replace(line.memory.range.range_map.shape, groups=line.memory.range.range_map.shape.groups * 65)
    other = line.port.memory(SequenceSpec(GEOMETRY, Layout.TOKEN_MAJOR, 256))
    object.__setattr__(other.range.range_map, "shape", odd)  # more layer groups than a message holds
    before = line.memory.committed_bytes
    with pytest.raises(ValueError, match="groups"):
        line.port.submit([Shed(line.memory), AskGrant(other, Grant(GrantId(other.request, 99), 4096))])
    assert (line.memory.committed_bytes, line.memory.in_flight) == (before, False)
    line.memory.close()
    assert line.world.granules("free") == 64
