"""The search for an owner ends with its port, however long somebody else takes to answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from kvcluster.errors import DeviceUnreachable
from kvcluster.services.contact import Contact, Link
from kvcluster.wire.socket import Welcome

TIMEOUT_S = 20.0
LOSS = DeviceUnreachable(device="host", reason="it died")
WELCOME = Welcome(device="host", epoch=2, granule_bytes=1, capacity_bytes=1, lease_s=1, heartbeat_s=1)


@dataclass
class Door:
    """A way that says when it was closed."""

    is_closed: threading.Event = field(default_factory=threading.Event)

    def close(self) -> None:
        self.is_closed.set()


@dataclass
class Slow:
    """A seek that asks somebody who is slow, and does not look whether it is to stop."""

    door: Door = field(default_factory=Door)
    answers: threading.Event = field(default_factory=threading.Event)

    def __call__(self, session: str, epoch: int, *, stopping: threading.Event) -> Link[Door]:
        assert self.answers.wait(TIMEOUT_S)
        return Link(session, WELCOME, self.door)


@pytest.fixture
def slow() -> Iterator[Slow]:
    slow = Slow()
    yield slow
    slow.answers.set()


def test_a_contact_that_is_closed_does_not_wait_for_who_is_slow_and_nothing_that_is_found_stays_open(
    slow: Slow,
) -> None:
    contact = Contact(slow, close_within_s=0.01)
    contact.lose("s", 1, LOSS)
    assert contact.close() is None
    assert not slow.door.is_closed.is_set()
    slow.answers.set()
    assert slow.door.is_closed.wait(TIMEOUT_S)
    with pytest.raises(DeviceUnreachable):
        contact.lose("s", 1, LOSS)


def test_what_is_found_while_a_contact_is_closed_is_its_callers(slow: Slow) -> None:
    contact = Contact(slow, close_within_s=TIMEOUT_S)
    contact.lose("s", 1, LOSS)
    slow.answers.set()
    link = contact.close()
    assert link is not None
    assert (link.way, slow.door.is_closed.is_set()) == (slow.door, False)
