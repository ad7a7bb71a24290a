from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from kvcluster.attach.client import AttachClient, open_attach_client
from kvcluster.attach.server import open_attach_server
from tests.attach.attach_world import TIMEOUT_S, ChildClient, RawClient, Recorder, Serving


@pytest.fixture
def stack(nothing_left: None) -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def events() -> Recorder:
    return Recorder()


@pytest.fixture
def serving(events: Recorder, stack: ExitStack) -> Serving:
    serving = Serving(open_attach_server("host:0", events))
    stack.callback(serving.close)
    return serving


@pytest.fixture
def address(serving: Serving) -> str:
    return serving.server.address


@pytest.fixture
def child(address: str, stack: ExitStack) -> ChildClient:
    child = ChildClient(address)
    stack.callback(child.end)
    return child


@pytest.fixture
def raw(address: str, stack: ExitStack) -> RawClient:
    client = RawClient(address)
    stack.callback(client.socket.close)
    return client


@pytest.fixture
def attach(address: str, stack: ExitStack) -> Callable[[str], AttachClient]:
    """Attach this very process as a session."""

    def attached(session: str) -> AttachClient:
        client = open_attach_client(address, session, timeout_s=TIMEOUT_S)
        stack.callback(client.close)
        return client

    return attached
