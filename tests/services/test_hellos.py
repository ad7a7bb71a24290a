"""Hellos to an owner that is sought: over its real file and a real socket, whatever of an answer is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kvcluster.attach.client import AttachClient
from kvcluster.attach.server import open_attach_server
from kvcluster.errors import DeviceUnreachable, NotAllowed
from kvcluster.services.contact import Link
from kvcluster.services.hellos import MOST_MEETINGS, TIMEOUT_S, Hellos, Lost
from kvcluster.services.session_file import SessionFile, open_session_file
from kvcluster.wire.socket import Hello, Welcome
from tests.attach.attach_world import Recorder, Serving

LOST = Lost("host:0", 1, "mine")


@dataclass
class Names(Recorder):
    """A service that welcomes each name once, when `is_awake`."""

    names: set[str] = field(default_factory=set)
    is_awake: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.is_awake.set()

    def hello(self, hello: Hello, *, pid: int) -> Welcome:
        self.is_awake.wait()
        if hello.session in self.names:
            raise NotAllowed(reason=f"session {hello.session} was here before: take a new name")
        self.names.add(hello.session)
        return super().hello(hello, pid=pid)


class Owner:
    """One incarnation, and whoever seeks it."""

    def __init__(self, path: Path) -> None:
        self.events = Names()
        self.file: SessionFile = open_session_file(path, wait_s=0)
        self.serving = Serving(open_attach_server("host:0", self.events))
        self.file.listens_at(self.serving.server.address)

    def sought_by(
        self,
        session: str,
        opened: Callable[[str, AttachClient], AttachClient] = lambda actor, attach: attach,
        *,
        epoch: int = 1,
        timeout_s: float = TIMEOUT_S,
    ) -> Hellos[str, AttachClient]:
        lost = Lost("host:0", epoch, session)
        return Hellos(self.file.path, lost, find=lambda: "actor", opened=opened, timeout_s=timeout_s)

    def close(self) -> None:
        self.events.is_awake.set()
        self.serving.close()
        self.file.close()


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    owner = Owner(tmp_path / "device-node-host:0.sessions")
    yield owner
    owner.close()


def found(hellos: Hellos[str, AttachClient]) -> Link[AttachClient]:
    """The first that answers."""
    while (link := hellos.say()) is None:
        pass
    return link


def refusing(error: Exception) -> Callable[[str, AttachClient], AttachClient]:
    """A way that cannot be opened."""

    def opened(actor: str, attach: AttachClient) -> AttachClient:
        raise error

    return opened


def test_another_incarnation_is_met_under_the_name_that_was_sought(owner: Owner) -> None:
    link = found(owner.sought_by("mine"))
    assert (link.session, link.way.alive) == ("mine", True)
    link.way.close()


def test_the_lost_incarnation_that_answers_lives_and_that_is_said_at_once(owner: Owner) -> None:
    first = found(owner.sought_by("mine"))
    with pytest.raises(DeviceUnreachable, match="it lives"):
        owner.sought_by("mine", epoch=owner.file.epoch).say()
    assert (first.way.alive, owner.events.of("mine")) == (True, ["hello"])
    first.way.close()


def test_the_lost_incarnation_that_answers_nobody_is_waited_for(owner: Owner) -> None:
    hellos = owner.sought_by("mine", epoch=owner.file.epoch, timeout_s=0.05)
    owner.events.is_awake.clear()
    assert hellos.say() is None
    owner.events.is_awake.set()
    owner.serving.close()
    assert hellos.say() is None


def test_one_that_dies_between_its_welcome_and_what_is_opened_is_sought_on(owner: Owner) -> None:
    death = DeviceUnreachable(device="host:0", reason="it died")
    deaths = iter([refusing(death)])
    hellos = owner.sought_by("mine", lambda actor, attach: next(deaths, lambda _, attach: attach)(actor, attach))
    assert hellos.say() is None
    owner.events.wait_for("disconnected", "mine")
    link = found(hellos)
    assert link.session not in ("mine", "")
    link.way.close()


def test_one_that_is_met_and_never_of_use_is_given_up_after_a_while(owner: Owner) -> None:
    hellos = owner.sought_by("mine", refusing(DeviceUnreachable(device="host:0", reason="it has no pages")))
    with pytest.raises(DeviceUnreachable, match="no pages"):
        found(hellos)
    assert len(owner.events.names) == MOST_MEETINGS


def test_a_page_that_cannot_be_mapped_closes_the_connection(owner: Owner) -> None:
    with pytest.raises(OSError, match="no memory"):
        owner.sought_by("mine", refusing(OSError("no memory"))).say()
    owner.events.wait_for("disconnected", "mine")


def test_a_hello_that_was_executed_and_not_answered_leads_on_under_another_name(owner: Owner) -> None:
    owner.events.is_awake.clear()
    hellos = owner.sought_by("mine", timeout_s=0.2)
    assert hellos.say() is None
    owner.events.is_awake.set()
    link = found(hellos)
    assert link.session != "mine"
    assert "mine" in owner.events.names
    link.way.close()


def test_a_name_that_was_here_before_this_search_is_refused_as_ever(owner: Owner) -> None:
    owner.events.names.add("mine")
    with pytest.raises(NotAllowed):
        owner.sought_by("mine").say()


def test_nothing_is_said_where_nobody_listens(owner: Owner, tmp_path: Path) -> None:
    with ExitStack() as undo:
        silent = open_session_file(tmp_path / "other.sessions", wait_s=0)
        undo.callback(silent.close)
        hellos = Hellos(silent.path, LOST, find=lambda: "actor", opened=lambda actor, attach: attach)
        assert hellos.say() is None
    unknown = Hellos(owner.file.path, LOST, find=lambda: None, opened=lambda actor, attach: attach)
    assert unknown.say() is None
    assert owner.events.names == set()
