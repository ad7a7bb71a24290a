"""A client's end of host pages whose session is over: what it had is nobody's, nor is what it began meanwhile."""

from __future__ import annotations

import threading

import pytest

from kvcluster.errors import SessionEnded
from kvcluster.services.contact import Link
from kvcluster.services.direct import DirectSender
from kvcluster.services.memory_state import MemoryState
from kvcluster.services.pages.local import LocalPages
from kvcluster.services.pages.port import PagePort, Pages
from tests.pages.world import PITCH_BYTES, Writer, small_pages


class Cut(DirectSender):
    """A way that ended."""

    @property
    def is_open(self) -> bool:
        return False


def port_that_is_cut(pages: LocalPages) -> PagePort:
    """It finds the pages again, each time under a name of the pages' own."""

    def seek(session: str, epoch: int, *, stopping: threading.Event) -> Link[Pages]:
        fresh = pages.open_port()
        return Link(fresh.session, fresh.welcome, Pages(fresh.exchange.line, fresh.store))

    first = pages.open_port()
    return PagePort(first.session, first.welcome, first.store, Cut(pages.service, first.session), seek=seek)


def found(port: PagePort) -> None:
    while not port.in_touch():
        threading.Event().wait(0.001)


def test_a_sequence_that_was_begun_under_a_name_that_the_host_does_not_know_is_closed_too() -> None:
    with small_pages(20) as pages:
        port = port_that_is_cut(pages)
        before = Writer(port)
        before.begin([1, 2, 3])
        with pytest.raises(SessionEnded):
            found(port)
        between, sought = Writer(port), port.session
        with pytest.raises(SessionEnded) as ended:
            found(port)
        assert (ended.value.session, port.session != sought) == (sought, True)
        assert {before.memory.state, between.memory.state} == {MemoryState.CLOSED}
        after = Writer(port)
        after.begin([1, 2, 3])
        assert (port.in_touch(), after.memory.request.session) == (True, port.session)
        after.check()
        assert pages.audit().accounts["free"] == 19 * PITCH_BYTES
        port.close()
