"""A wire that loses, doubles and reorders, beside a perfect one: what every owner of memory must make of it.

The model is a client that sends each frame exactly once over a perfect wire to an owner of its own. Both must agree on
every account after each step, whatever the lossy wire did.
"""

from __future__ import annotations

from typing import Protocol

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from kvcluster.errors import LateDuplicate
from kvcluster.services.frame_service import FrameService
from kvcluster.testing.clock import ManualClock
from kvcluster.wire import messages as wire
from kvcluster.wire.codec import decode_reply
from tests.services.world import refusal


class Writing(Protocol):
    """A client that writes its frames itself."""

    seq: int

    def frame(self, *ops: wire.Operation, ack: int) -> bytes: ...


class Far:
    """One of the two: a service with one client; both clients have one name."""

    def __init__(self, service: FrameService, client: Writing, clock: ManualClock) -> None:
        self.service, self.client, self.clock = service, client, clock

    def frame(self, frame: bytes) -> bytes:
        return self.service.frame(frame)

    def content(self, reply: bytes) -> object:
        """What both must answer alike."""
        return reply


class LossyMachine(RuleBasedStateMachine):
    """Frames are made by `make`, of whatever operations a machine has rules for."""

    def __init__(self, lossy: Far, perfect: Far) -> None:
        super().__init__()
        self.lossy, self.perfect = lossy, perfect
        self.sent: list[bytes] = []  # every frame ever made; any may show up again at any time
        self.unanswered: dict[int, tuple[bytes, bytes]] = {}  # by seq: the frame, and its reply on the perfect wire
        self.expected: dict[int, bytes] = {}
        self.received: set[int] = set()
        self.ack = 0

    def make(self, waiting: bool, *ops: wire.Operation) -> None:
        """Make the next frame; the perfect wire has it at once, the lossy one too unless it is `waiting`."""
        frame = self.lossy.client.frame(*ops, ack=self.ack)
        seq = self.perfect.client.seq = self.lossy.client.seq
        for earlier in sorted(self.unanswered):  # one frame at a time is ahead of the perfect wire: order matters
            self.arrives(earlier)
        self.sent.append(frame)
        self.expected[seq] = self.perfect.frame(frame)
        self.unanswered[seq] = (frame, self.expected[seq])
        if not waiting:
            self.arrives(seq)

    def arrives(self, seq: int) -> None:
        frame, expected = self.unanswered.pop(seq)
        assert self.lossy.content(self.lossy.frame(frame)) == self.perfect.content(expected)

    @rule(data=st.data(), times=st.integers(1, 3))
    @precondition(lambda self: self.sent)
    def a_frame_shows_up_again(self, data: st.DataObject, times: int) -> None:
        place = data.draw(st.integers(0, len(self.sent) - 1))
        seq = place + 1
        if seq in self.unanswered:
            return self.arrives(seq)
        for _ in range(times):
            reply = self.lossy.service.frame(self.sent[place])
            is_same = self.lossy.content(reply) == self.perfect.content(self.expected[seq])
            assert is_same or isinstance(refusal(decode_reply(reply)), LateDuplicate)
        return None

    @rule(data=st.data())
    def a_reply_is_received(self, data: st.DataObject) -> None:
        there = [seq for seq in self.expected if seq not in self.unanswered and seq > self.ack]
        if there:
            self.received.add(data.draw(st.sampled_from(there)))
        while self.ack + 1 in self.received:
            self.ack += 1

    @rule(seconds=st.sampled_from([0.5, 3.0, 6.0]))
    def time_passes(self, seconds: float) -> None:
        for seq in sorted(self.unanswered):
            self.arrives(seq)
        for far in (self.lossy, self.perfect):
            far.clock.advance(seconds)
