"""Another user's process is refused at the attach socket, by the kernel's word, before a byte of it is read.

A test that runs as root makes a process of another user. Where it does not, it cannot; then this very process takes
itself for another user's, and the process that connects is the stranger. Both fail where nobody is asked who he is.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from kvcluster.attach import listener
from kvcluster.attach.listener import MOST_STRANGERS
from kvcluster.attach.sockets import Peer
from tests.attach.attach_world import ROOT, RawClient, Recorder

NOBODY = 65_534
KNOCK = """
import os, socket, sys
wanted = int(sys.argv[2])
if wanted != os.getuid():
    os.setgroups([])
    os.setgid(wanted)
    os.setuid(wanted)
    assert os.geteuid() == wanted
link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
link.settimeout(30)
link.connect(sys.argv[1].replace("@", "\\0"))
try:
    link.send(b"anything")
    print(len(link.recv(4096)))
except (BrokenPipeError, ConnectionResetError):
    print(0)
"""


def bytes_answered(address: str, uid: int) -> int:
    """By the server to a process of that user, which says something that every server answers; 0: it hung up."""
    command = [sys.executable, "-c", KNOCK, address.replace("\0", "@"), str(uid)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, cwd=ROOT)
    return int(done.stdout)


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch) -> int:
    """The user of a process that is not the server's."""
    if os.geteuid() == 0:
        return NOBODY
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    return mine


def test_a_process_of_our_own_user_is_answered(events: Recorder, address: str) -> None:
    assert bytes_answered(address, os.getuid()) > 0


def test_a_process_of_another_user_is_refused_and_told_of_in_one_sentence(
    events: Recorder, address: str, stranger: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger=listener.__name__):
        assert [bytes_answered(address, stranger) for _ in range(2)] == [0, 0]
    assert events.calls == []
    [record] = caplog.records
    assert f"it is user {stranger}'s" in record.getMessage()
    assert "was refused at @kvcluster-host:0-" in record.getMessage()


def test_however_many_users_knock_the_log_names_a_few(
    events: Recorder, address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    users = iter(range(1_000_000, 1_000_000 + 4 * MOST_STRANGERS))
    peer_of: Callable[[object], Peer] = lambda _: Peer(pid=0, uid=next(users))  # noqa: E731
    monkeypatch.setattr(listener, "peer_of", peer_of)
    with caplog.at_level(logging.WARNING, logger=listener.__name__):
        for _ in range(2 * MOST_STRANGERS):
            raw = RawClient(address)
            assert raw.hear() is None
            raw.socket.close()
    assert len(caplog.records) == MOST_STRANGERS
    assert all("a process of another pid namespace was refused" in each.getMessage() for each in caplog.records)
