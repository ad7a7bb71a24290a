"""A client whose frames get lost, doubled and overtaken, and whose replies do: no message counts twice or too late.

The model is a client that sends each frame exactly once over a perfect wire to a device of its own. Both devices
must agree on every account after each step, whatever the lossy wire did.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvcluster.errors import LateDuplicate
from kvcluster.services.device import DeviceService, DeviceSettings
from kvcluster.services.device_memory import MemorySettings
from kvcluster.testing.clock import ManualClock
from kvcluster.testing.tidy_driver import TidyDriver
from kvcluster.wire import messages as wire
from tests.services.world import (
    GRANULE,
    WireClient,
    commit_op,
    give_back_op,
    grant_op,
    key,
    open_op,
    refusal,
    release_op,
)

GRANULES = 24
requests = st.integers(1, 3)
sizes = st.integers(1, 12)


class Device:
    """A service of 24 granules with one client of a fixed name."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.driver = TidyDriver(granule_bytes=GRANULE, capacity_bytes=GRANULES * GRANULE)
        memory = MemorySettings(GRANULES * GRANULE, GRANULE, 2 * GRANULE)
        self.service = DeviceService(self.driver, DeviceSettings("host", memory), clock=self.clock)
        self.client = WireClient(self.service, "the-client")


class LossyWire(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.lossy, self.perfect = Device(), Device()
        self.sent: list[bytes] = []  # every frame ever made; any may show up again at any time
        self.unanswered: dict[int, tuple[bytes, bytes]] = {}  # by seq: the frame, and its reply on the perfect wire
        self.expected: dict[int, bytes] = {}
        self.received: set[int] = set()
        self.ack = 0
        self.numbers = 0

    @rule(number=requests, granules=sizes, waiting=st.booleans())
    def grows(self, number: int, granules: int, waiting: bool) -> None:
        self.numbers += 1
        self.make(waiting, grant_op(number, self.numbers, granules), commit_op(number, self.numbers, granules))

    @rule(number=requests, granules=sizes, waiting=st.booleans())
    def asks_a_grant(self, number: int, granules: int, waiting: bool) -> None:
        self.numbers += 1
        self.make(waiting, grant_op(number, self.numbers, granules))

    @rule(number=requests, back=st.integers(0, 4), granules=sizes)
    def spends(self, number: int, back: int, granules: int) -> None:
        self.make(False, commit_op(number, max(self.numbers - back, 0), granules))

    @rule(number=requests, back=st.integers(0, 4))
    def gives_back(self, number: int, back: int) -> None:
        self.make(False, give_back_op(number, max(self.numbers - back, 0)))

    @rule(
        number=requests,
        start=st.integers(0, 6),
        count=st.integers(1, 6),
        outcome=st.sampled_from(["clean", "quarantined"]),
    )
    def releases(self, number: int, start: int, count: int, outcome: str) -> None:
        self.make(False, release_op(number, start, count, outcome))

    @rule(number=requests, granules=sizes, waiting=st.booleans())
    def finds(self, number: int, granules: int, waiting: bool) -> None:
        self.numbers += 1
        find = wire.Find(request=key(number), token_ids=bytes(4 * 100))
        self.make(waiting, find, grant_op(number, self.numbers, granules), commit_op(number, self.numbers, granules))

    @rule(number=requests)
    def opens(self, number: int) -> None:
        self.make(False, open_op(number, max_tokens=12 * 16, root=b"root"))

    @rule(number=requests, retain=st.sampled_from([0, 64, 100]))
    def closes(self, number: int, retain: int) -> None:
        self.make(False, wire.Close(request=key(number), retain_tokens=retain))

    def make(self, waiting: bool, *ops: wire.Operation) -> None:
        """Make the next frame; the perfect wire has it at once, the lossy one too unless it is `waiting`."""
        frame = self.lossy.client.frame(*ops, ack=self.ack)
        seq = self.perfect.client.seq = self.lossy.client.seq
        for earlier in sorted(self.unanswered):  # one frame at a time is ahead of the perfect wire: order matters
            self.arrives(earlier)
        self.sent.append(frame)
        self.expected[seq] = self.perfect.service.frame(frame)
        self.unanswered[seq] = (frame, self.expected[seq])
        if not waiting:
            self.arrives(seq)

    def arrives(self, seq: int) -> None:
        frame, expected = self.unanswered.pop(seq)
        assert self.lossy.service.frame(frame) == expected

    @rule(data=st.data(), times=st.integers(1, 3))
    @precondition(lambda self: self.sent)
    def a_frame_shows_up_again(self, data: st.DataObject, times: int) -> None:
        place = data.draw(st.integers(0, len(self.sent) - 1))
        seq = place + 1
        if seq in self.unanswered:
            return self.arrives(seq)
        for _ in range(times):
            reply = self.lossy.service.frame(self.sent[place])
            late = self.lossy.client.send(self.sent[place])
            assert reply == self.expected[seq] or isinstance(refusal(late), LateDuplicate)
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
        for device in (self.lossy, self.perfect):
            device.clock.advance(seconds)

    @invariant()
    def both_devices_agree_on_every_byte(self) -> None:
        lossy = self.lossy.service.audit()
        if not self.unanswered:
            perfect = self.perfect.service.audit()
            assert (lossy.accounts, lossy.handles) == (perfect.accounts, perfect.handles)
            assert (lossy.open_requests, lossy.requests, lossy.refusals) == (
                perfect.open_requests,
                perfect.requests,
                perfect.refusals,
            )
            assert (lossy.prefixes, lossy.lookups, lossy.found_tokens) == (
                perfect.prefixes,
                perfect.lookups,
                perfect.found_tokens,
            )
        assert lossy.stored_replies <= len(self.sent)

    def teardown(self) -> None:
        for device in (self.lossy, self.perfect):
            device.service.gone("the-client")
            seen = device.service.audit()
            assert {name.partition("/")[0] for name in seen.accounts} <= {"free", "retained"}
            device.driver.clear()


TestLossyWire = LossyWire.TestCase
TestLossyWire.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
