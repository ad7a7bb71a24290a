"""A client whose frames get lost, doubled and overtaken, and whose replies do: no message counts twice or too late.

See `tests.services.lossy`; here the verbs of a device.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from kvcluster.services.device import DeviceService, DeviceSettings
from kvcluster.services.device_memory import MemorySettings
from kvcluster.testing.clock import ManualClock
from kvcluster.testing.tidy_driver import TidyDriver
from kvcluster.wire import messages as wire
from tests.examples import examples
from tests.services.lossy import Far, LossyMachine
from tests.services.world import (
    GRANULE,
    WireClient,
    commit_op,
    give_back_op,
    grant_op,
    key,
    open_op,
    release_op,
)

GRANULES = 24
requests = st.integers(1, 3)
sizes = st.integers(1, 12)


class Device(Far):
    """A service of 24 granules with one client of a fixed name."""

    def __init__(self) -> None:
        clock = ManualClock()
        self.driver = TidyDriver(granule_bytes=GRANULE, capacity_bytes=GRANULES * GRANULE)
        memory = MemorySettings(GRANULES * GRANULE, GRANULE, 2 * GRANULE)
        self.device = DeviceService(self.driver, DeviceSettings("host", memory), clock=clock)
        super().__init__(self.device, WireClient(self.device, "the-client"), clock)


class LossyWire(LossyMachine):
    def __init__(self) -> None:
        self.devices = (Device(), Device())
        super().__init__(*self.devices)
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

    @rule(number=requests, retain=st.sampled_from([0, 64, 100]), told=st.sampled_from([0, 100, 100]))
    def closes(self, number: int, retain: int, told: int) -> None:
        """What had a Find that found room has told 100 ids; whoever says another number is refused."""
        self.make(False, wire.Close(request=key(number), retain_tokens=retain, told_tokens=told))

    @invariant()
    def both_devices_agree_on_every_byte(self) -> None:
        lossy = self.devices[0].device.audit()
        if not self.unanswered:
            perfect = self.devices[1].device.audit()
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
        for device in self.devices:
            device.device.gone("the-client")
            seen = device.device.audit()
            assert {name.partition("/")[0] for name in seen.accounts} <= {"free", "retained"}
            device.driver.clear()


TestLossyWire = LossyWire.TestCase
TestLossyWire.settings = settings(max_examples=examples(40), stateful_step_count=40, deadline=None)
