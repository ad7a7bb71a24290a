"""An act that breaks off in the middle: whatever was half done, nothing is executed after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kvcluster.driver.host import HostDriver
from kvcluster.driver.protocol import PhysicalHandle
from kvcluster.errors import InvariantBroken, NotAllowed
from kvcluster.memory.handle import HandleState
from kvcluster.services.device import DeviceService, DeviceSettings
from kvcluster.services.device_memory import MemorySettings
from kvcluster.testing.clock import ManualClock
from kvcluster.testing.tidy_driver import Tidied
from kvcluster.wire import messages as wire
from kvcluster.wire.codec import decode_reply, encode
from kvcluster.wire.socket import Hello
from tests.services.world import GRANULE, WireClient, commit_op, grant_op, open_op, release_op


class Bursting(HostDriver):
    """Raises `burst` at the third release; that is no failure that a driver may have."""

    burst: Exception | None = None
    releases = 0

    def release(self, handle: PhysicalHandle) -> None:
        self.releases += 1
        if self.burst is not None and self.releases == 3:
            raise self.burst
        super().release(handle)


@pytest.fixture
def driver() -> Bursting:
    return Bursting(granule_bytes=GRANULE, capacity_bytes=64 * GRANULE)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def service(driver: Bursting, clock: ManualClock) -> Iterator[DeviceService]:
    memory, tidied = MemorySettings(64 * GRANULE, GRANULE, 2 * GRANULE), Tidied(driver)
    yield DeviceService(tidied, DeviceSettings("host", memory), clock=clock)
    driver.burst = None
    tidied.clear()


@pytest.fixture
def client(service: DeviceService) -> WireClient:
    """Ten windows, of which two find room in the pool."""
    client = WireClient(service)
    client.opened(1)
    client.ask(grant_op(1, 1, 10), commit_op(1, 1, 10))
    return client


@pytest.mark.parametrize("burst", [RuntimeError("at release"), NotAllowed(reason="at release")])
def test_a_frame_that_broke_off_is_never_executed_again_nor_any_other(
    driver: Bursting, service: DeviceService, client: WireClient, burst: Exception
) -> None:
    frame = client.frame(release_op(1, 0, 10))
    driver.burst = burst
    with pytest.raises((RuntimeError, InvariantBroken), match="at release"):
        service.frame(frame)
    before = service.statistics(), dict(driver.calls())
    other: dict[str, Callable[[], object]] = {
        "the same bytes": lambda: service.frame(frame),
        "another frame": lambda: client.ask(open_op(2)),
        "hello": lambda: service.hello(Hello(session="late"), pid=1),
        "a ticket": lambda: service.handles(client.session, 2),
        "the end of a process": lambda: service.gone(client.session),
        "idle": service.idle,
        "close_if_idle": lambda: service.close_if_idle(0),
        "close": service.close,
    }
    for act in other.values():
        with pytest.raises(InvariantBroken, match="at release"):
            act()
    assert (service.statistics(), dict(driver.calls())) == before


def test_handles_whose_release_broke_off_are_on_the_pools_list_and_the_audit_still_sums(
    driver: Bursting, service: DeviceService, client: WireClient
) -> None:
    driver.burst = RuntimeError()
    with pytest.raises(RuntimeError):
        client.ask(release_op(1, 0, 10))
    assert service.audit().handles[HandleState.POOLED.value] == 8 * GRANULE


def test_an_audit_of_a_broken_device_returns_no_grant(
    driver: Bursting, service: DeviceService, client: WireClient, clock: ManualClock
) -> None:
    client.ask(grant_op(1, 7, 2))
    driver.burst = RuntimeError()
    with pytest.raises(RuntimeError):
        client.ask(release_op(1, 0, 10))
    before = service.statistics().accounts
    clock.advance(60)
    assert service.audit().accounts == before


def test_a_refusal_breaks_nothing(service: DeviceService, client: WireClient) -> None:
    with pytest.raises(NotAllowed):
        service.hello(Hello(session=client.session), pid=1)
    with pytest.raises(NotAllowed):
        service.handles(client.session, 77)
    assert client.ask(open_op(2)).fault is None


def test_a_reply_with_the_most_runs_and_the_longest_refusals_can_be_encoded() -> None:
    large = 2**32
    run = wire.Run(group=63, fragment=large, start=large, count=large)
    most = DeviceSettings("host", MemorySettings(GRANULE, GRANULE, 0)).most_runs
    key = wire.RequestKey(number=2**63 - 1, generation=2**63 - 1)
    granted = wire.GroupResult(request=key, answers=(wire.Committed(runs=(run,) * most),))
    fault = wire.Fault(error="NotAllowed", fields={"reason": "x" * 200})
    refused = wire.GroupResult(request=key, fault=fault)
    reply = wire.Reply(session="s" * 64, seq=2**63 - 1, epoch=2**63 - 1, results=(granted, *[refused] * 4095))
    assert decode_reply(encode(reply)).results[1] == refused
