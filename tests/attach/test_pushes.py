"""What the device says unasked arrives once, in order, and in nobody's way; what is known needs no descriptor."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import pytest
from pydantic import ValidationError

from kvcluster.attach.client import AttachClient
from kvcluster.attach.protocol import HandedHandle
from kvcluster.ids import ImportKey
from kvcluster.wire.socket import MOST_FORGOTTEN, MOST_KNOWN, Forget, Push, Reclaim, Redeem
from tests.attach.attach_world import RawClient, Recorder, Serving, contents, open_fds

Attach = Callable[[str], AttachClient]


def say(events: Recorder, serving: Serving, *pushes: Push, session: str = "s") -> None:
    """Push, and return when it was sent: the loop's next redemption comes after it."""
    events.to_say.extend((session, push) for push in pushes)
    serving.server.nudge()


def forget(*numbers: int) -> Forget:
    return Forget(handles=tuple((number, 1) for number in numbers))


def heard(client: AttachClient, events: Recorder) -> tuple[Push, ...]:
    """What was said by now: it is sent at the end of the turn that answers the first redemption, at the latest."""
    for _ in range(2):
        client.redeem(events.empty, lambda _: None)
    return client.pushes()


def test_nothing_was_said_and_nobody_waits(attach: Attach) -> None:
    assert attach("s").pushes() == ()


def test_what_is_said_before_a_redemption_is_put_aside_and_heard_once(
    events: Recorder, serving: Serving, attach: Attach
) -> None:
    client = attach("s")
    events.gate.clear()
    say(events, serving, Reclaim(size_bytes=4096, younger_than=7), forget(1, 2))
    events.gate.set()
    assert contents(client, 2) == ["0/2", "1/2"]
    assert heard(client, events) == (Reclaim(size_bytes=4096, younger_than=7), forget(1, 2))
    assert client.pushes() == ()


def test_a_push_reaches_its_own_session_and_one_without_a_connection_hears_nothing(
    events: Recorder, serving: Serving, attach: Attach
) -> None:
    one, other = attach("one"), attach("other")
    say(events, serving, forget(1), session="one")
    say(events, serving, forget(2), session="nobody")
    assert heard(other, events) == ()
    assert heard(one, events) == (forget(1),)
    other.close()
    events.wait_for("disconnected", "other")
    say(events, serving, forget(3), session="other")
    assert len(contents(one, 3)) == 3


def forgotten(messages: Sequence[tuple[str, object]]) -> set[int]:
    return {number for _, said in messages if isinstance(said, Forget) for number, _ in said.handles}


def test_pushes_that_wait_become_one_of_a_kind_and_the_newest_demand_counts(
    events: Recorder, serving: Serving, raw: RawClient, attach: Attach
) -> None:
    """A client that does not read piles up nothing."""
    raw.hello("stuck")
    other = attach("other")
    for ask in range(1, 1001):  # its buffer is full
        raw.say(Redeem(ask=ask, seq=5))
    events.wait_for("redeem", "stuck", times=1000)
    for number in range(1, 200):
        say(events, serving, Reclaim(size_bytes=number, younger_than=1), forget(number), session="stuck")
        assert contents(other, events.empty) == []
    messages: list[tuple[str, object]] = []
    newest = Reclaim(size_bytes=199, younger_than=1)
    while ("handed", 1000) not in messages or forgotten(messages) != set(range(1, 200)):  # these may come after that
        said = raw.hear()
        assert said is not None
        messages.append((said.verb, getattr(said, "ask", said)))
    pushes = [said for verb, said in messages if verb in ("reclaim", "forget")]
    assert len(pushes) <= 4
    assert newest in pushes


def test_more_than_a_message_holds_is_several_and_all_of_it_arrives(
    events: Recorder, serving: Serving, attach: Attach
) -> None:
    client = attach("s")
    numbers = range(2 * MOST_FORGOTTEN + 5)
    say(events, serving, *(forget(*numbers[start : start + 1000]) for start in range(0, len(numbers), 1000)))
    said = [push for push in heard(client, events) if isinstance(push, Forget)]
    assert [number for push in said for number, _ in push.handles] == list(numbers)


def test_a_closed_client_and_one_whose_server_is_gone_hear_nothing(serving: Serving, attach: Attach) -> None:
    client, closed = attach("s"), attach("t")
    closed.close()
    serving.close()
    assert (client.pushes(), closed.pushes()) == ((), ())
    serving.server.nudge()
    assert not client.alive


def test_a_late_answer_is_thrown_away_with_its_descriptors(events: Recorder, attach: Attach) -> None:
    client = attach("s")
    before = open_fds()
    events.gate.clear()
    with pytest.raises(Exception, match="in time"):
        client.redeem(20, lambda _: None, timeout_s=0.05)
    events.gate.set()
    assert client.pushes() == ()
    assert contents(client, events.empty) == []
    assert open_fds() == before


def test_a_known_handle_comes_by_name_and_without_a_descriptor(events: Recorder, attach: Attach) -> None:
    client = attach("s")
    known = [ImportKey(number, 300) for number in (0, 7, 254, 299)]
    handed: list[tuple[HandedHandle, str]] = []

    def take(handle: HandedHandle) -> None:
        handed.append((handle, "" if handle.fd is None else os.pread(handle.fd, 100, 0).decode()))

    client.redeem(300, take, known=known)
    assert [handle.key.handle.number for handle, _ in handed] == list(range(300))
    assert [handle.key for handle, text in handed if not text] == known
    assert all(text == f"{handle.key.handle.number}/300" for handle, text in handed if text)


def test_a_sealed_handle_is_not_known_by_what_was_imported_before_its_seal(events: Recorder, attach: Attach) -> None:
    client, came = attach("s"), []
    client.redeem(1, lambda handle: came.append(handle.fd), known=[ImportKey(0, 1, is_sealed=True)])
    assert came != [None]


def test_more_known_handles_than_a_message_names_are_misuse_and_say_nothing(events: Recorder, attach: Attach) -> None:
    client = attach("s")
    with pytest.raises(ValidationError):
        client.redeem(1, lambda _: None, known=[ImportKey(n, 1) for n in range(MOST_KNOWN + 1)])
    assert contents(client, 1) == ["0/1"]
