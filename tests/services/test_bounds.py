"""Tables that clients fill have a bound, and what lies beyond it is a refusal that changed nothing."""

from __future__ import annotations

import pytest

from kvcluster.errors import DeviceUnreachable, KvClusterError, LimitReached, NotAllowed
from kvcluster.services.device import DeviceService, DeviceSettings
from kvcluster.services.device_settings import MemorySettings
from kvcluster.services.local import open_device
from kvcluster.services.open_requests import MOST_OPEN
from kvcluster.services.sessions import ReplyLimits
from kvcluster.testing.clock import ManualClock
from kvcluster.testing.invariants import picture
from kvcluster.testing.tidy_driver import TidyDriver
from kvcluster.wire import messages as wire
from kvcluster.wire.socket import Hello
from tests.services.world import GRANULE, WireClient, World, close_op, commit_op, grant_op, key, open_op, refusal

MEMORY = MemorySettings(64 * GRANULE, GRANULE, 0)


def service_of(settings: DeviceSettings, clock: ManualClock | None = None) -> DeviceService:
    driver = TidyDriver(granule_bytes=GRANULE, capacity_bytes=64 * GRANULE)
    return DeviceService(driver, settings, clock=clock or ManualClock())


@pytest.mark.parametrize("limits", [ReplyLimits(most=3), ReplyLimits(most_bytes=250)])
def test_beyond_its_stored_replies_a_session_is_refused_and_nothing_is_executed(limits: ReplyLimits) -> None:
    service = service_of(DeviceSettings("host", MEMORY, replies=limits))
    client = WireClient(service)
    frames = [client.frame(open_op(number)) for number in range(1, 5)]
    replies = [service.frame(frame) for frame in frames]
    assert isinstance(refusal(client.send(frames[3])), LimitReached)
    assert service.statistics().open_requests == service.statistics().stored_replies == 3
    assert service.frame(frames[0]) == replies[0]  # what is stored is answered as before
    acknowledging = client.frame(open_op(4), seq=4, ack=3)
    assert refusal(client.send(acknowledging)) is None
    assert service.statistics().open_requests == 4


def test_the_names_of_ended_sessions_are_remembered_up_to_a_bound() -> None:
    service = service_of(DeviceSettings("host", MEMORY, most_ended=2))
    for name in ("a", "b", "c"):
        WireClient(service, name)
        service.disconnected(name)
    assert service.statistics().ended_names == 2
    for name in ("b", "c"):
        with pytest.raises(NotAllowed):
            service.hello(Hello(session=name), pid=1)


def test_a_session_s_silence_and_its_process_are_seen() -> None:
    clock = ManualClock()
    service = service_of(DeviceSettings("host", MEMORY), clock)
    client = WireClient(service, "s", pid=7)
    clock.advance(3)
    assert (service.statistics().silent_s, service.statistics().pids) == ({"s": 3.0}, {"s": 7})
    service.heartbeat(client.session)
    clock.advance(1)
    assert service.statistics().silent_s == {"s": 1.0}


# --- leaving --------------------------------------------------------------------------------------------------------


def test_a_device_with_a_session_or_not_idle_long_enough_does_not_close() -> None:
    clock = ManualClock()
    service = service_of(DeviceSettings("host", MEMORY), clock)
    client = WireClient(service)
    clock.advance(100)
    assert not service.close_if_idle(10)
    service.disconnected(client.session)
    clock.advance(9)
    assert not service.close_if_idle(10)
    WireClient(service)


def test_after_a_device_closed_for_idleness_hello_finds_it_unreachable() -> None:
    clock = ManualClock()
    service = service_of(DeviceSettings("host", MEMORY), clock)
    clock.advance(10)
    assert service.close_if_idle(10)
    with pytest.raises(DeviceUnreachable, match="leaving"):
        service.hello(Hello(session="late"), pid=1)
    assert service.close_if_idle(10)
    service.close()
    with pytest.raises(DeviceUnreachable, match="leaving"):
        service.hello(Hello(session="later"), pid=1)


def test_a_device_without_sessions_keeps_nothing_pooled(world: World, client: WireClient) -> None:
    other = WireClient(world.service)
    client.opened(1)
    client.ask(grant_op(1, 1, 2), commit_op(1, 1, 2))
    world.service.gone(client.session)
    assert world.handles("pooled") == 2
    world.service.disconnected(other.session)
    assert world.handles("pooled") == 0


# --- sizes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("memory", "granule"), [("1KiB", "64KiB"), ("0", "64KiB"), ("100KiB", "64KiB"), ("1MiB", "0"), ("1MiB", "3KiB")]
)
def test_a_device_of_a_size_that_cannot_be_is_refused_when_it_is_opened(memory: str, granule: str) -> None:
    with pytest.raises(ValueError, match="granule"):
        open_device("host", memory=memory, granule=granule)


# --- places in the queue --------------------------------------------------------------------------------------------


def arrival(reply: wire.Reply) -> int:
    [opened] = reply.results[-1].answers
    assert isinstance(opened, wire.Opened)
    return opened.arrival


def after(number: int, earlier: int) -> wire.Open:
    return open_op(number).model_copy(update={"after": key(earlier)})


def test_a_request_takes_the_place_of_an_ended_one_of_its_session_and_nobody_takes_it_again(
    world: World, client: WireClient
) -> None:
    client.opened(1)
    client.opened(2)
    assert arrival(client.ask(close_op(1), after(3, 1))) == 1
    assert arrival(client.ask(after(4, 1))) == 3
    client.ask(close_op(3))
    assert arrival(client.ask(after(5, 3))) == 1  # and so on, from life to life


def test_nobody_takes_the_place_of_an_open_request_or_of_another_session_s(world: World, client: WireClient) -> None:
    other = WireClient(world.service)
    client.opened(1)
    assert arrival(client.ask(after(2, 1))) == 2
    client.ask(close_op(1))
    assert arrival(other.ask(after(3, 1))) == 3


def test_a_refused_open_leaves_the_place_for_another_try(world: World, client: WireClient) -> None:
    client.opened(1)
    client.ask(close_op(1))
    before = picture(world.device)
    huge = open_op(2, max_tokens=10**6).model_copy(update={"after": key(1)})
    assert refusal(client.ask(huge)) is not None
    assert picture(world.device) == before
    assert arrival(client.ask(after(3, 1))) == 1


# --- a quarantine that lasts ----------------------------------------------------------------------------------------


def test_a_waiter_that_a_quarantine_keeps_from_ever_being_served_holds_up_no_younger_one(
    world: World, client: WireClient
) -> None:
    other = WireClient(world.service)
    other.opened(1)
    other.ask(grant_op(1, 1, 10), commit_op(1, 1, 10))
    other.ask(close_op(1))  # ten granules wait for its process's end
    client.ask(open_op(1, max_tokens=64 * 16))
    client.ask(open_op(2))
    error = refusal(client.ask(grant_op(1, 1, 60)))
    assert getattr(error, "quarantined", 0) == 10 * GRANULE
    assert refusal(client.ask(grant_op(2, 2, 16))) is None
    world.service.gone(other.session)
    assert refusal(client.ask(grant_op(1, 3, 60))) is not None
    assert refusal(client.ask(open_op(3), grant_op(3, 4, 1))) is not None  # now it can be served, and has its claim


def test_beyond_its_open_requests_a_session_is_refused_until_it_closes_one(world: World, client: WireClient) -> None:
    def ask(seq: int, op: wire.Operation) -> KvClusterError | None:
        return refusal(client.send(client.frame(op, seq=seq, ack=seq - 1)))

    for number in range(1, MOST_OPEN + 1):
        assert ask(number, open_op(number)) is None
    assert isinstance(ask(MOST_OPEN + 1, open_op(MOST_OPEN + 1)), LimitReached)
    assert ask(MOST_OPEN + 2, close_op(1)) is None
    assert ask(MOST_OPEN + 3, open_op(MOST_OPEN + 1)) is None
