"""Descriptors arrive whole and in order, or an error does and nothing is left open."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from kvcluster.attach.client import AttachClient
from kvcluster.attach.protocol import HandedHandle
from kvcluster.attach.sockets import MAX_DESCRIPTORS
from kvcluster.errors import DeviceUnreachable, DriverError, LimitReached, NotAllowed, UnknownRequest
from kvcluster.wire.socket import Redeem
from tests.attach.attach_world import (
    ROOT,
    ChildClient,
    RawClient,
    Recorder,
    Serving,
    contents,
    open_fds,
    room_for,
    text_of,
)

Attach = Callable[[str], AttachClient]


@pytest.mark.parametrize("count", [1, 253, 254, 600])
def test_descriptors_arrive_in_order_with_their_contents_and_close_on_exec(child: ChildClient, count: int) -> None:
    child.ask("attach s")
    texts = " ".join(f"{number}/{count}" for number in range(count))
    assert child.ask(f"redeem {count}") == f"0 {4096 * count} {texts}"


def refuse(_handle: HandedHandle) -> None:
    raise AssertionError("nothing was to come")


def test_of_a_large_ticket_one_packets_descriptors_are_open_at_once(events: Recorder, attach: Attach) -> None:
    client = attach("s")
    before = open_fds()
    open_while_taken: list[int] = []
    client.redeem(2_000, lambda _: open_while_taken.append(open_fds()))
    assert len(open_while_taken) == 2_000
    most = before + 2 * MAX_DESCRIPTORS + 1  # this process is both ends, and either may see the other one counting
    assert events.most_open <= most
    assert max(open_while_taken) <= most
    assert contents(client, events.empty) == []  # by now the server has closed its copies
    assert open_fds() == before


def test_a_ticket_that_ends_while_it_is_handed_over_is_refused_and_nothing_stays_open(
    events: Recorder, attach: Attach
) -> None:
    client = attach("s")
    before = open_fds()
    events.void_from = 253
    taken: list[HandedHandle] = []
    with pytest.raises(NotAllowed, match="released"):
        client.redeem(600, taken.append)
    assert len(taken) == 253
    events.void_from = None
    assert len(contents(client, 300)) == 300
    assert contents(client, events.empty) == []
    assert open_fds() == before


def test_a_client_that_fails_while_it_takes_keeps_nothing_open_and_may_ask_again(
    events: Recorder, attach: Attach
) -> None:
    client = attach("s")
    before = open_fds()

    def fail_at_the_fourth(handle: HandedHandle) -> None:
        if text_of(handle) == "3/600":
            raise LimitReached(limit="descriptors", need=1, free=0, remedy="")

    with pytest.raises(LimitReached):
        client.redeem(600, fail_at_the_fourth)
    assert contents(client, 2) == ["0/2", "1/2"]
    assert contents(client, events.empty) == []
    assert open_fds() == before


def test_a_ticket_may_be_redeemed_again(child: ChildClient) -> None:
    child.ask("attach s")
    assert child.ask("redeem 2") == child.ask("redeem 2")


def test_a_ticket_without_descriptors_is_answered_too(events: Recorder, attach: Attach) -> None:
    assert contents(attach("s"), events.empty) == []


def test_a_refused_redemption_raises_the_services_error_and_the_session_lives_on(
    events: Recorder, attach: Attach
) -> None:
    client = attach("s")
    events.redeem_error = UnknownRequest(request="s/7.0")
    with pytest.raises(UnknownRequest, match=r"s/7\.0"):
        contents(client, 1)
    events.redeem_error = None
    assert len(contents(client, 3)) == 3
    assert client.alive
    assert events.of("s") == ["hello", "redeem", "redeem"]


def test_a_redemption_that_came_too_late_does_not_spoil_the_next(events: Recorder, attach: Attach) -> None:
    client = attach("s")
    events.gate.clear()
    with pytest.raises(DeviceUnreachable, match="in time"):
        client.redeem(300, refuse, timeout_s=0.05)
    assert client.alive
    events.gate.set()
    assert contents(client, 2) == ["0/2", "1/2"]


def test_a_late_refusal_does_not_spoil_the_next_redemption(events: Recorder, attach: Attach) -> None:
    client = attach("s")
    events.gate.clear()
    with pytest.raises(DeviceUnreachable):
        client.redeem(events.empty + 1, refuse, timeout_s=0.05)
    events.gate.set()
    assert contents(client, events.empty) == []


def test_a_client_without_room_for_the_descriptors_keeps_none_and_may_ask_again(child: ChildClient) -> None:
    child.ask("attach s")
    before = child.ask("fds")
    child.ask("limit 20")
    assert child.ask("redeem 600").startswith("LimitReached: 253 descriptors are needed")
    assert child.ask("fds") == before
    child.ask("limit 260")
    assert child.ask("redeem 600").startswith("0 2457600 0/600 1/600")


def test_a_server_at_its_limit_of_descriptors_turns_a_client_away_and_serves_on(
    events: Recorder, child: ChildClient, attach: Attach
) -> None:
    client = attach("s")
    with room_for(0):
        assert child.ask("attach t").startswith("DeviceGone")
        assert contents(client, events.empty) == []
    assert child.ask("attach t") == "welcome to host:0"


def test_a_server_without_a_descriptor_for_the_pidfd_refuses_the_hello(
    events: Recorder, raw: RawClient, attach: Attach
) -> None:
    client = attach("s")
    assert contents(client, events.empty) == []  # by now `raw` was accepted
    with room_for(0):
        answer = raw.hello("t")
    assert answer is not None
    assert answer.model_dump()["error"] == "LimitReached"
    assert raw.hear() is None
    assert events.of("t") == []


def test_the_server_survives_a_client_that_dies_during_its_redemption(
    events: Recorder, child: ChildClient, attach: Attach
) -> None:
    other = attach("other")
    child.ask("attach s")
    events.gate.clear()
    child.tell("redeem 600")
    events.wait_for("redeem", "s")
    child.kill()
    events.gate.set()
    events.wait_for("gone", "s")
    assert len(contents(other, 5)) == 5


def test_a_client_that_never_reads_hinders_nobody_and_piles_up_nothing(
    events: Recorder, raw: RawClient, attach: Attach
) -> None:
    raw.hello("stuck")
    before = open_fds()
    for ask in range(1, 1001):
        raw.say(Redeem(ask=ask, seq=5))
    events.wait_for("redeem", "stuck", times=1000)
    other = attach("other")
    assert len(contents(other, 300)) == 300
    assert contents(other, events.empty) == []  # by now the server has closed its copies of the 300
    assert open_fds() <= before + 10  # one unsent redemption; and the other client's socket, both ends, and pidfd
    answers: list[int] = []
    while not answers or answers[-1] < 1000:
        answer = raw.hear()
        assert answer is not None
        answers.append(answer.model_dump()["ask"])
    assert answers == sorted(answers)
    assert len(answers) < 1000


def test_a_server_that_closes_leaves_its_client_not_alive(serving: Serving, attach: Attach) -> None:
    client = attach("s")
    serving.close()
    assert not client.alive
    with pytest.raises(DeviceUnreachable):
        contents(client, 1)


def test_closing_a_client_ends_the_redemption_that_waits(events: Recorder, attach: Attach) -> None:
    client = attach("s")
    events.gate.clear()
    failures: list[str] = []

    def redeem() -> None:
        with pytest.raises(DeviceUnreachable) as caught:
            contents(client, 1)
        failures.append(caught.value.device)

    waiting = threading.Thread(target=redeem)
    waiting.start()
    events.wait_for("redeem", "s")
    client.close()
    waiting.join()
    events.gate.set()
    assert failures == ["host:0"]


def test_a_service_that_breaks_its_protocol_ends_the_server_with_everything_closed(
    events: Recorder, serving: Serving, attach: Attach
) -> None:
    client = attach("s")
    events.redeem_error = ZeroDivisionError()
    with pytest.raises(DeviceUnreachable):
        contents(client, 1)
    serving.wait()
    assert isinstance(serving.failure, ZeroDivisionError)


def test_a_drivers_error_during_a_redemption_reaches_the_client(events: Recorder, attach: Attach) -> None:
    events.redeem_error = DriverError(call="export_fd", code=24, name="EMFILE")
    with pytest.raises(DriverError, match="EMFILE"):
        contents(attach("s"), 1)


def test_descriptors_that_the_kernel_does_not_take_are_closed_and_the_redemption_is_refused() -> None:
    command = [sys.executable, "-m", "tests.attach.too_many_under_way"]
    heard = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout
    assert heard == "['handed', 'handed', 'not_handed'] LimitReached 7 0\n"


def test_a_closed_client_redeems_nothing(attach: Attach) -> None:
    client = attach("s")
    client.close()
    client.close()
    with pytest.raises(DeviceUnreachable, match="closed"):
        contents(client, 1)
