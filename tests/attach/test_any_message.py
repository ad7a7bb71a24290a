"""Clients that ask for redemptions by the hundred, with senseless numbers, and read what they like, of a real device.

None of it costs the device a descriptor, hinders another client, or changes who has what.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from kvcluster.attach.client import open_attach_client
from kvcluster.attach.server import open_attach_server
from kvcluster.services.device import DeviceService, DeviceSettings
from kvcluster.services.device_memory import MemorySettings
from kvcluster.testing.clock import ManualClock
from kvcluster.testing.tidy_driver import TidyDriver
from kvcluster.wire import messages as wire
from kvcluster.wire.codec import decode_reply, encode
from kvcluster.wire.socket import MOST_KNOWN, Handed, Heartbeat, NotHanded, Redeem
from tests.attach.attach_world import TIMEOUT_S, RawClient, Serving, open_fds

GRANULE = 4096
CAPACITY = 32 * GRANULE
WINDOWS = 12
HUGE = (2**31, 2**63 - 1)
KEY = wire.RequestKey(number=1)


@pytest.fixture
def service() -> Iterator[DeviceService]:
    driver = TidyDriver(granule_bytes=GRANULE, capacity_bytes=CAPACITY)
    memory = MemorySettings(CAPACITY, GRANULE, 4 * GRANULE)
    service = DeviceService(driver, DeviceSettings("host", memory), clock=ManualClock())
    yield service
    service.close()
    driver.clear()  # the sessions' process, which is this one, may still have what was quarantined


@pytest.fixture
def address(service: DeviceService, stack: ExitStack) -> str:
    serving = Serving(open_attach_server("host:0", service))
    stack.callback(serving.close)
    return serving.server.address


def commit(service: DeviceService, session: str) -> None:
    """Frame 2 has the ticket."""
    groups = (wire.Group(fragments=1, stride_bytes=GRANULE),)
    frames = [
        (wire.Open(request=KEY, groups=groups, max_tokens=WINDOWS),),
        (
            wire.Grant(request=KEY, grant=1, size_bytes=WINDOWS * GRANULE),
            wire.Commit(request=KEY, grant=1, tokens=WINDOWS),
        ),
    ]
    for seq, ops in enumerate(frames, 1):
        frame = wire.Frame(session=session, seq=seq, ack=0, epoch=1, ops=ops)
        reply = decode_reply(service.frame(encode(frame)))
        assert all(result.fault is None for result in reply.results)


def anything(dice: random.Random) -> Redeem | Heartbeat:
    """A redemption that names what may be, and what cannot."""
    if dice.random() < 0.1:
        return Heartbeat()

    def number() -> int:
        return dice.choice([*range(WINDOWS + 2), *HUGE])

    count = dice.choice([0, 0, 3, MOST_KNOWN])
    known = tuple((number(), dice.choice([0, 1, *HUGE]), dice.random() < 0.5) for _ in range(count))
    return Redeem(ask=max(1, number()), seq=dice.choice([1, 2, 2, 2, 3, *HUGE]), known=known)


@pytest.mark.parametrize("seed", range(6))
def test_a_flood_of_redemptions_costs_nothing_and_hinders_nobody(
    service: DeviceService, address: str, stack: ExitStack, seed: int
) -> None:
    dice, taken = random.Random(seed), []
    raw = RawClient(address)
    stack.callback(raw.socket.close)
    raw.hello("flood")
    commit(service, "flood")
    honest = open_attach_client(address, "honest", timeout_s=TIMEOUT_S)
    stack.callback(honest.close)
    commit(service, "honest")
    before, accounts = open_fds(), dict(service.audit().accounts)
    raw.socket.setblocking(False)
    for _ in range(300):
        with suppress(BlockingIOError):  # the server waits for us to read
            raw.socket.send(encode(anything(dice)))
        if dice.random() < 0.3:
            with suppress(BlockingIOError):
                assert isinstance(raw.hear(), Handed | NotHanded)
    honest.redeem(2, lambda handle: taken.append(handle.fd is not None), timeout_s=TIMEOUT_S)
    assert taken == [True] * WINDOWS
    assert dict(service.audit().accounts) == accounts
    raw.socket.close()
    while service.statistics().sessions["flood"] == "live":
        os.sched_yield()
    assert open_fds() <= before - 2  # the connection's two ends are closed, and no descriptor of memory came
    assert service.audit().accounts["quarantine"] == WINDOWS * GRANULE
