"""Descriptors arrive whole and in order, or an error does and nothing is left open."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from kvcluster.attach.client import AttachClient
from kvcluster.attach.sockets import close_all
from kvcluster.errors import DeviceUnreachable, DriverError, UnknownRequest
from kvcluster.wire.messages import Redeem
from tests.attach.attach_world import ROOT, ChildClient, RawClient, Recorder, Serving, open_fds, room_for

Attach = Callable[[str], AttachClient]


@pytest.mark.parametrize("count", [1, 253, 254, 600])
def test_descriptors_arrive_in_order_with_their_contents_and_close_on_exec(child: ChildClient, count: int) -> None:
    child.ask("attach s")
    texts = " ".join(f"{number}/{count}" for number in range(count))
    assert child.ask(f"redeem {count}") == f"0 {4096 * count} {texts}"


def test_a_ticket_may_be_redeemed_again(child: ChildClient) -> None:
    child.ask("attach s")
    assert child.ask("redeem 2") == child.ask("redeem 2")


def test_a_ticket_without_descriptors_is_answered_too(events: Recorder, attach: Attach) -> None:
    descriptors = attach("s").redeem(events.empty)
    assert (descriptors.fds, descriptors.handle_bytes) == ((), ())


def test_a_refused_redemption_raises_the_services_error_and_the_session_lives_on(
    events: Recorder, attach: Attach
) -> None:
    client = attach("s")
    events.redeem_error = UnknownRequest(request="s/7.0")
    with pytest.raises(UnknownRequest, match=r"s/7\.0"):
        client.redeem(1)
    events.redeem_error = None
    close_all(client.redeem(3).fds)
    assert client.alive
    assert events.of("s") == ["hello", "redeem", "redeem"]


def test_a_redemption_that_came_too_late_does_not_spoil_the_next(events: Recorder, attach: Attach) -> None:
    client = attach("s")
    events.gate.clear()
    with pytest.raises(DeviceUnreachable, match="in time"):
        client.redeem(300, timeout_s=0.05)
    assert client.alive
    events.gate.set()
    descriptors = client.redeem(2)
    assert [os.pread(fd, 100, 0) for fd in descriptors.fds] == [b"0/2", b"1/2"]
    close_all(descriptors.fds)


def test_a_late_refusal_does_not_spoil_the_next_redemption(events: Recorder, attach: Attach) -> None:
    client = attach("s")
    events.gate.clear()
    with pytest.raises(DeviceUnreachable):
        client.redeem(events.empty + 1, timeout_s=0.05)
    events.gate.set()
    assert client.redeem(events.empty).fds == ()


def test_a_client_without_room_for_the_descriptors_keeps_none_and_may_ask_again(child: ChildClient) -> None:
    child.ask("attach s")
    before = child.ask("fds")
    child.ask("limit 20")
    assert child.ask("redeem 600").startswith("LimitReached: 600 descriptors are needed")
    assert child.ask("fds") == before
    child.ask("limit 700")
    assert child.ask("redeem 600").startswith("0 2457600 0/600 1/600")


def test_a_server_at_its_limit_of_descriptors_turns_a_client_away_and_serves_on(
    events: Recorder, child: ChildClient, attach: Attach
) -> None:
    client = attach("s")
    with room_for(0):
        assert child.ask("attach t").startswith("DeviceUnreachable")
        assert client.redeem(events.empty).fds == ()
    assert child.ask("attach t") == "welcome to host:0"


def test_a_server_without_a_descriptor_for_the_pidfd_refuses_the_hello(
    events: Recorder, raw: RawClient, attach: Attach
) -> None:
    client = attach("s")
    assert client.redeem(events.empty).fds == ()  # by now `raw` was accepted
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
    close_all(other.redeem(5).fds)


def test_a_client_that_never_reads_hinders_nobody_and_piles_up_nothing(
    events: Recorder, raw: RawClient, attach: Attach
) -> None:
    raw.hello("stuck")
    before = open_fds()
    for ask in range(1, 1001):
        raw.say(Redeem(ask=ask, seq=5))
    events.wait_for("redeem", "stuck", times=1000)
    other = attach("other")
    close_all(other.redeem(300).fds)
    assert other.redeem(events.empty).fds == ()  # by now the server has closed its copies of the 300
    assert open_fds() <= before + 10  # one unsent redemption; and the other client's socket, both ends, and pidfd
    answers = []
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
        client.redeem(1)


def test_closing_a_client_ends_the_redemption_that_waits(events: Recorder, attach: Attach) -> None:
    client = attach("s")
    events.gate.clear()
    failures: list[str] = []

    def redeem() -> None:
        with pytest.raises(DeviceUnreachable) as caught:
            client.redeem(1)
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
        client.redeem(1)
    serving.wait()
    assert isinstance(serving.failure, ZeroDivisionError)


def test_a_drivers_error_during_a_redemption_reaches_the_client(events: Recorder, attach: Attach) -> None:
    events.redeem_error = DriverError(call="export_fd", code=24, name="EMFILE")
    with pytest.raises(DriverError, match="EMFILE"):
        attach("s").redeem(1)


def test_descriptors_that_the_kernel_does_not_take_are_closed_and_the_redemption_is_refused() -> None:
    command = [sys.executable, "-m", "tests.attach.too_many_under_way"]
    heard = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout
    assert heard == "['handed', 'not_handed'] LimitReached 7 0\n"


def test_a_closed_client_redeems_nothing(attach: Attach) -> None:
    client = attach("s")
    client.close()
    client.close()
    with pytest.raises(DeviceUnreachable, match="closed"):
        client.redeem(1)
